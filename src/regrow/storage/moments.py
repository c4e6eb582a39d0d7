"""Which moments an optimizer keeps of each weight: not known by its name, but found by trying it on a toy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.methods.effects.moments import Moments
from regrow.storage.optimizer_state import fresh_copy, take_step

_GRADIENTS = ((1.0, -1.0, 2.0, 0.0, 0.0), (0.0,) * 5, (0.0, 0.0, 0.0, 1.0, 0.0))
"""Of the toy in three steps: of a mean the first says what it is of, the second how it decays.

The fourth weight begins two steps after the first, and its state is until then what states begin with. The last one has
a value, and never a gradient.
"""


def moments_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> dict[int, Moments | None]:
    """Those of each parameter group that holds any of the parameters, by its number; None where a trial fails."""
    ours = {id(parameter) for parameter in parameters}
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        mine = [parameter for parameter in group["params"] if id(parameter) in ours]
        if mine:
            found[number] = _tried(optimizer, group, mine[0])
    return found


def _tried(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> Moments | None:
    if "weight_decay" in group:
        group = group | {"weight_decay": group["weight_decay"] or 0.1}  # a schedule may begin at 0
    device = torch.get_default_device() if like.is_meta else like.device
    for beginning in (torch.empty(0), like):  # with state of its own, where it is not made before the first step
        toy = torch.nn.Parameter(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64, device=device))
        try:
            return _with_settings(_tell(toy, fresh_copy(optimizer, group, toy, beginning)), group)
        except Exception:  # an optimizer we know nothing about may raise anything
            continue
    return None


def _tell(toy: torch.nn.Parameter, trial: Optimizer) -> Moments:
    moves, states = [], []
    for gradients in _GRADIENTS:
        before = toy.detach().clone()
        take_step(trial, toy, torch.tensor(gradients, dtype=toy.dtype, device=toy.device))
        moves.append((toy.detach() - before).tolist())
        states.append({name: (own - own[3]).tolist() for name, own in trial.state[toy].items() if _is_like(own, toy)})
        toy.data.zero_()  # so that weight decay adds nothing to the gradients that follow
    is_momentum = moves[1][0] != 0
    decays = {name: states[1][name][0] / own[0] for name, own in states[0].items() if own[0]}
    first = {name for name in decays if _is_alike(states[0][name], (1, -1, 2))}
    second = {name for name in decays if _is_alike(states[0][name], (1, 1, 4))}
    return Moments(
        first={name: decays[name] for name in sorted(first) if is_momentum},
        second={name: decays[name] for name in sorted(second)},
        others=frozenset(states[0]) - first - second,
        is_corrected=not isclose(moves[0][0], moves[2][3], rel_tol=1e-6),
        decays_apart=moves[0][4] != 0 and not any(own[4] for own in states[0].values()),
    )


def _with_settings(moments: Moments, group: Mapping[str, Any]) -> Moments:
    """Which settings of a group the decays are; of equal ones the first is that of the first moment."""
    numbers: dict[tuple[str, int | None], float] = {}
    for name, value in group.items():
        if name in ("lr", "weight_decay"):
            continue
        parts = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        numbers |= {(name, place): own for place, own in parts if type(own) is float and 0 < own < 1}

    def alike(decay: float) -> list[tuple[str, int | None]]:
        return [where for where, number in numbers.items() if isclose(number, decay, rel_tol=1e-6)]

    first = {name: alike(decay)[0] for name, decay in moments.first.items() if alike(decay)}
    second = {name: alike(decay)[-1] for name, decay in moments.second.items() if alike(decay)}
    return replace(moments, settings=first | second)


def _is_like(value: object, toy: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == toy.shape


def _is_alike(found: Sequence[float], shares: Sequence[int]) -> bool:
    """Whether the first numbers are so many times the first of them."""
    pairs = zip(found, shares, strict=False)
    return all(isclose(number, share * found[0], rel_tol=1e-6) for number, share in pairs)
