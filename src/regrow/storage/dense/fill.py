"""Functions of units, written to tensors that have an entry for every place."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regrow.core.quantities import OfChunk, Quantities
from regrow.core.row import Chunk, join
from regrow.core.selections import positions_of
from regrow.methods.effects.effect import Moves

Everywhere = Callable[[Chunk, str], Sequence[Tensor]]
"""A quantity at all places of a chunk, flat, layer by layer."""


def fill(
    tensors: Sequence[Tensor],
    values: Callable[[Quantities], Tensor],
    chunks: Sequence[Chunk],
    active: Sequence[Tensor],
    everywhere: Everywhere,
) -> None:
    """Set every entry to a function of its unit; the weight of an inactive one is 0."""
    for chunk, flags in zip(chunks, active, strict=True):
        filled = chunk.split(values(_all_units(chunk, flags, everywhere)))
        for layer, tensor, own in zip(chunk.layers, chunk.of(tensors), filled, strict=True):
            tensor.copy_(layer.unflatten(own))


def _all_units(chunk: Chunk, active: Tensor, everywhere: Everywhere) -> OfChunk:
    def look_up(name: str) -> Tensor:
        flat = torch.cat(list(everywhere(chunk, name)))
        return flat.masked_fill_(~active, 0) if name == "weight" else flat  # whatever was set there since

    return OfChunk(chunk, look_up)


def move_active(
    weights: Sequence[Tensor],
    moves: Moves,
    rates: Sequence[float],
    chunks: Sequence[Chunk],
    active: Sequence[Tensor],
    everywhere: Everywhere,
) -> None:
    """Add to each active weight a function of its unit and of its rate."""
    for chunk, flags in zip(chunks, active, strict=True):
        places = positions_of(flags)
        moved = moves(_units_at(chunk, places, everywhere), chunk.per_unit(chunk.of(rates), places))
        row = torch.zeros(chunk.num_units, device=chunk.device).index_copy_(0, places, moved)
        views = [layer.unflatten(own) for layer, own in zip(chunk.layers, chunk.split(row), strict=True)]
        torch._foreach_add_(list(chunk.of(weights)), views)


def _units_at(chunk: Chunk, places: Tensor, everywhere: Everywhere) -> OfChunk:
    def look_up(name: str) -> Tensor:
        return join(everywhere(chunk, name)).index_select(0, places)

    return OfChunk(chunk, look_up, lambda: places)
