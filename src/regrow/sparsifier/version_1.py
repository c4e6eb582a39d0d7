"""States of version 1, as those of today. They load for ever; nothing writes them any more."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.sparsifier.history import MOST_RECORDS, Rewiring
from regrow.storage.base import DAMAGED, Storage

_KEYS = frozenset(["seed", "step", "budget", "goal", "memory", "masks", "companions", "history"])
_NAMES = {"signs": "sign", "mean gradient": "mean_gradient"}


def from_version_1(
    state: Mapping[str, Any], layers: Sequence[Layer], budget_moves: bool, storage: Storage | None
) -> dict[str, Any]:
    """The same state in version 2, for a storage if there is one yet; what else is wrong with it is found there."""
    if missing := _KEYS - set(state):
        raise ValueError(f"{DAMAGED}: it has no {min(missing)!r}")
    try:
        return _converted(state, layers, budget_moves) | _of_storage(state, storage)
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{DAMAGED}: {error}") from error


def _converted(state: Mapping[str, Any], layers: Sequence[Layer], budget_moves: bool) -> dict[str, Any]:
    shapes = {layer.name: layer.shape for layer in layers}
    names = state.get("positions") or state["masks"] or shapes
    records = [Rewiring(**record) for record in state["history"]]
    active = sum(int(mask.count_nonzero()) for mask in state["masks"].values())
    return {
        "version": 2,
        "regrow": "0.1.0",
        "method": state["method"],
        "settings": state.get("settings", ""),
        "granularity": state["granularity"],
        "layers": tuple((name, shapes.get(name, ())) for name in names),
        "seed": state["seed"],
        "step": state["step"],
        "target": state["budget"],
        "budget": active if budget_moves else state["budget"],  # Gradual's was the final one, whatever it held
        "goal": tuple(state["goal"]),
        "memory": dict(state["memory"]),
        "history": tuple(asdict(record) for record in records[-MOST_RECORDS:]),
        "totals": (asdict(reduce(Rewiring.plus, records)),) if records else (),
    }


def _of_storage(state: Mapping[str, Any], storage: Storage | None) -> dict[str, Any]:
    """Positions were a list for each layer, and what lay beside the weights had other names."""
    beside = {_NAMES[kind]: dict(tensors) for kind, tensors in state["companions"].items()}
    if "positions" in state:
        positions: dict[str, Tensor] = state["positions"]
        return {
            "storage": "packed",
            "positions": torch.cat([own.long() for own in positions.values()]),
            "counts": tuple(map(len, positions.values())),
            "kernels": tuple(sorted(state["kernels"].items())),
            "beside": {kind: torch.cat([tensors[name] for name in positions]) for kind, tensors in beside.items()},
        }
    if not state["masks"]:
        return {"storage": "hashed", "counts": tuple(state["goal"])}
    fresh = {} if storage is None else storage.state().get("beside", {})
    for kind, tensors in fresh.items():  # none of it before the first step
        if isinstance(tensors, Mapping):
            beside.setdefault(kind, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    return {"storage": "dense", "masks": dict(state["masks"]), "beside": beside}
