"""What makes a saved state fit a packed network."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.kernels.cpu.choose import Choices
from regrow.storage.base import DAMAGED, check_keys, check_kind, check_like


def check_state(
    state: Mapping[str, Any],
    layers: Sequence[Layer],
    rooms: Sequence[tuple[str, Sequence[int], int]],
    beside: Mapping[str, Tensor],
) -> list[int]:
    """Refuse a state that does not fit; the active weights of each layer that it has.

    `rooms`: of each vector its name, its layers and its length. `beside`: vectors of the budget's length.
    """
    check_kind(state, "packed", {"counts", "positions", "kernels", "beside"})
    positions = positions_of_layers(state, layers)
    counts = list(map(len, positions))
    for name, own, room in rooms:
        given = sum(counts[i] for i in own)
        if given != room:
            raise ValueError(
                f"the state has {given:,} active weights where {name} has room for {room:,}; attach with the same "
                "sparsity and parameter groups"
            )
    check_keys(state["beside"], beside, "beside")
    for name, vector in beside.items():
        check_like(state["beside"][name], vector, name)
    Choices().load(kernels_of(state))
    return counts


def positions_of_layers(state: Mapping[str, Any], layers: Sequence[Layer]) -> Sequence[Tensor]:
    """The positions of each layer; refused if they cannot be its."""
    counts = _checked_counts(state, len(layers))
    positions = state["positions"]
    if not isinstance(positions, Tensor) or positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{DAMAGED}: its positions are no whole numbers")
    if positions.shape != (sum(counts),):
        raise ValueError(f"{DAMAGED}: it has {tuple(positions.shape)} positions for {sum(counts)} active weights")
    found = torch.split(positions.long(), counts)
    for layer, logical in zip(layers, found, strict=True):
        _check_positions(layer, logical)
    return found


def _checked_counts(state: Mapping[str, Any], num_layers: int) -> list[int]:
    counts = state.get("counts", ())
    is_list = isinstance(counts, Sequence) and len(counts) == num_layers
    if not is_list or not all(isinstance(n, int) and n > 0 for n in counts):
        raise ValueError(f"{DAMAGED}: its counts are {counts!r}")
    return list(counts)


def _check_positions(layer: Layer, logical: Tensor) -> None:
    """Refuse positions that are not inside a layer, or not in the order of its values."""
    num_columns = layer.num_weights // layer.shape[0]
    stored = logical % num_columns * layer.shape[0] + logical // num_columns
    is_inside = int(logical.amin()) >= 0 and int(logical.amax()) < layer.num_weights
    if not is_inside or not bool((stored[1:] > stored[:-1]).all()):
        raise ValueError(f"the state's positions do not fit layer {layer.name}; is it from another model?")


def kernels_of(state: Mapping[str, Any]) -> dict[str, str]:
    """How layers were computed, by case."""
    try:
        return {str(case): way for case, way in state["kernels"]}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{DAMAGED}: its kernels are {state['kernels']!r}") from error
