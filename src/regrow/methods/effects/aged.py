"""Moments that count from a weight's own beginning (SMET, 2026), under any optimizer that keeps such means.

An optimizer divides its means by 1 - decay^t, since they begin at 0. A weight that grows late begins at 0 too, but t is
that of all: its first updates are too large, 6.6 times at the twelfth step where the decay of the squares is .999.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, log
from operator import is_not

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.selections import positions_of
from regrow.core.units import memory_order, wide
from regrow.kernels.gpu import is_capturing
from regrow.methods.effects.effect import Effect, Weights, rewirable
from regrow.methods.effects.moments import Moments, own_share

WARM_UP = 100
"""In so many steps of its own the first moment of a weight comes to count in full."""
_NOTHING, _FROM_THE_START = 0, -1


@dataclass
class Young:
    """Weights of a parameter that grew not long ago: where, after which step, and what they were before this step.

    `group`: the number of the parameter's group. `places`: in the order of the parameter's memory, by `dims`.
    """

    group: int
    dims: tuple[int, ...]
    places: Tensor
    grown_at: Tensor
    before: Tensor | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """What a tensor like the parameter has at these places, with at least single precision."""
        return wide(tensor.permute(self.dims).reshape(-1).index_select(0, self.places))

    def write(self, tensor: Tensor, values: Tensor) -> None:
        grid = tensor.permute(self.dims)
        flat = grid.reshape(-1).index_copy_(0, self.places, values.to(tensor.dtype))
        if flat.data_ptr() != tensor.data_ptr():  # it lies otherwise in memory, and this is a copy
            grid.copy_(flat.view(grid.shape))


class AgedMoments(Effect):
    """Lets young weights make updates as of their own age, and damps their first moments, in place, while they warm up.

    `of_groups`: the moments of each parameter group, by its number. Nothing but weights and moments is touched. Beside
    the weights lies after which step they grew; who is young is looked up when the network was rewired.
    """

    def __init__(self, of_groups: Mapping[int, Moments]) -> None:
        self._of_groups = of_groups
        self._step = self._looked_at = 0
        self._horizons: dict[int, int] = {}
        self._young: list[Young] = []
        self._of: Sequence[Tensor] = ()
        self._snapshot: list[Tensor] | None = None  # the weights as a captured step finds them

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)
        self._rewirable.lay_beside("grown_at", torch.int32, None)
        self.renew()

    def renew(self) -> None:
        """Whatever is there has been from the start."""
        for grown_at, active in zip(self._grown_at, self._rewirable.active, strict=True):
            grown_at.fill_(_NOTHING).masked_fill_(active, _FROM_THE_START)
        self._of = ()

    def restart(self, step: int, seed: int) -> None:
        super().restart(step, seed)
        self._step, self._of = step, ()

    def rewired(self, step: int) -> None:
        for grown_at, active in zip(self._grown_at, self._rewirable.active, strict=True):
            grown_at.masked_fill_(active & (grown_at == _NOTHING), step).masked_fill_(~active, _NOTHING)
        self._of = ()

    def before_step(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        weights = self._rewirable.weights
        if is_capturing():
            self._snapshot = [weight.clone() for weight in weights]
            return
        for weight, parameter, young in zip(weights, self._rewirable.parameters, self._look_up(), strict=True):
            young.before = None if parameter.grad is None else young.read(weight)

    def after_step(self, step: int, is_replayed: bool) -> bool:
        self._step = step
        for i, young in enumerate(self._look_up()):
            if is_replayed and self._snapshot is not None:
                young.before = young.read(self._snapshot[i])
            if young.before is not None and len(young.grown_at):
                self._correct(i, young, young.before)
            young.before = None
        return False

    # Who is young

    @property
    def _grown_at(self) -> Sequence[Tensor]:
        return self._rewirable.beside("grown_at")

    def _look_up(self) -> list[Young]:
        """Those of each parameter, anew where anything moved or decays changed; none when all have grown old since."""
        now, horizons = self._grown_at, {group: self._horizon(group) for group in self._of_groups}
        has_moved = len(self._of) != len(now) or any(map(is_not, self._of, now))
        if has_moved or horizons != self._horizons:
            self._horizons = horizons
            self._young = [self._young_of(*own) for own in zip(self._rewirable.parameters, now, strict=True)]
            self._of, self._looked_at = list(now), self._step
        elif self._step - self._looked_at >= max(horizons.values()):
            self._young = [replace(own, places=own.places[:0], grown_at=own.grown_at[:0]) for own in self._young]
        return self._young

    def _young_of(self, parameter: Tensor, grown_at: Tensor) -> Young:
        groups = enumerate(self._optimizer.param_groups)
        group = next(number for number, group in groups if any(own is parameter for own in group["params"]))
        dims = memory_order(parameter)
        flat = grown_at.permute(dims).reshape(-1)
        places = positions_of(flat > max(self._step - self._horizons[group], _NOTHING))
        return Young(group, dims, places, flat.index_select(0, places))

    def _horizon(self, group: int) -> int:
        return horizon(self._of_groups[group].of(self._optimizer.param_groups[group]))

    # What their updates are

    def _correct(self, i: int, young: Young, before: Tensor) -> None:
        weight, state = self._rewirable.weights[i], self._optimizer.state[self._rewirable.parameters[i]]
        group = self._optimizer.param_groups[young.group]
        moments = self._of_groups[young.group].of(group)
        second = reduce(torch.maximum, (young.read(state[name]) for name in moments.second))
        age = self._step - young.grown_at
        share = own_share(moments, _whole(moments, age, second.dtype), second, state.get("step"), group.get("eps", 0.0))
        if self._step - self._looked_at < WARM_UP:
            warmth = (age.to(second.dtype) / WARM_UP).clamp_(max=1)
            share = share * warmth
            for name in moments.first:
                young.write(state[name], young.read(state[name]) * warmth)
        decayed = before * (1 - group["lr"] * group["weight_decay"]) if moments.decays_apart else before
        now = young.read(weight)  # as it stays where a weight has grown old since it was looked up
        young.write(weight, torch.where(age < horizon(moments), decayed + share * (now - decayed), now))


def _whole(moments: Moments, age: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """How much of each mean is there at some ages; by a table, as torch's powers depend on where in a tensor they are.

    So who else is young, of which a resumed run may know fewer, changes not a bit.
    """
    ages = torch.arange(horizon(moments), dtype=dtype, device=age.device)
    own = age.clamp(max=len(ages) - 1)
    return [(1 - decay**ages).index_select(0, own) for decay in (moments.first_decay, moments.second_decay or 0.0)]


def horizon(moments: Moments) -> int:
    """The age from which on a weight is as any other: less than half a percent of its update is missing."""
    decay = moments.second_decay
    return max(WARM_UP, ceil(log(0.01) / log(decay))) if decay else WARM_UP
