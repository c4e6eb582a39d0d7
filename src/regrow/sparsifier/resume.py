"""What `attach` takes from a saved state before there is a sparsifier that could load it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.methods.method import Method, is_whole
from regrow.sparsifier.state import as_current
from regrow.storage.base import DAMAGED, check_storage
from regrow.storage.packed.state import positions_of_layers


class MasksOfPositions(Mapping[str, Tensor]):
    """Masks of layers whose active places are listed, each made when it is asked for, as all of them may be large."""

    def __init__(self, layers: Sequence[Layer], positions: Sequence[Tensor]) -> None:
        self._listed = {layer.name: (layer, own) for layer, own in zip(layers, positions, strict=True)}

    def __getitem__(self, name: str) -> Tensor:
        layer, positions = self._listed[name]
        flat = torch.zeros(layer.num_weights, dtype=torch.bool, device=positions.device)
        return flat.index_fill_(0, positions, True).view(layer.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def start_of(
    state: Any, method: Method, layers: Sequence[Layer], storage: str
) -> tuple[str | Mapping[str, Tensor], int]:
    """Where a saved run stood, as what one would start from, and its seed; refused if it was a run of something else.

    What else is wrong with the state is found when it is loaded.
    """
    state = as_current(state, method, layers)
    check_storage(state, storage)
    if not is_whole(state["seed"]) or not is_whole(state["target"]):
        raise ValueError(f"{DAMAGED}: its seed or target is no whole number")
    _check_budget(state, method, layers)
    if "positions" in state:
        return MasksOfPositions(layers, positions_of_layers(state, layers)), state["seed"]
    return state.get("masks", "random"), state["seed"]


def _check_budget(state: Mapping[str, Any], method: Method, layers: Sequence[Layer]) -> None:
    """A run that began from masks has their budget, whatever its method says; so the method must say the same still."""
    ours, theirs = method.budget(sum(layer.num_weights for layer in layers)), state["target"]
    if ours != theirs and _sparsity_in(state["settings"]) != _sparsity_in(repr(method)):
        raise ValueError(
            f"the state has a budget of {theirs:,} weights, {_sparsity_in(repr(method))}) one of {ours:,} here; attach "
            "with the sparsity that it was saved with"
        )


def _sparsity_in(settings: object) -> str:
    """How a method's settings begin: with its name and its sparsity."""
    return str(settings).split(",")[0]
