"""Which units come: positions in a chunk that were free before pruning."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log, sqrt

import torch
from torch import Tensor

from regrow import chance
from regrow.kernels import can_use_triton, drawing
from regrow.row import Chunk, Stretch
from regrow.select import ascending, k_smallest, k_smallest_each, positions_of


def at_random(chunk: Chunk, wanted: Sequence[int], free: Sequence[int], active: Tensor, key: int) -> Tensor:
    """`wanted[l]` places of each layer, uniform among its free ones, as a function of the key and the layer's number.

    Each layer has an endless random sequence of its places; it takes the first that are free and not yet taken. By
    symmetry every set of free places is equally likely, and drawing more of the sequence than needed changes nothing,
    so that the result does not depend on device or chunks. A layer that wants more than an eighth of its free places
    would have to draw too long: there every place gets a random number and the free ones with the smallest are taken.
    """
    few = [i for i, n in enumerate(wanted) if 0 < 8 * n <= free[i]]
    many = [i for i, n in enumerate(wanted) if 8 * n > free[i]]
    found = [_smallest_numbers(chunk, i, wanted[i], active, chance.key(key, chunk.first + i)) for i in many]
    if few:
        found.append(_first_in_sequence(chunk, few, wanted, free, active, key))
    if len(found) == 1:
        return found[0]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=chunk.device)


def by_score(stretch: Stretch, wanted: Sequence[int]) -> Tensor:
    """The free places of each layer with the largest scores; among equal ones those that come first."""
    lowness = stretch.scores().neg_().index_fill_(0, stretch.positions, torch.inf)
    return k_smallest_each(lowness, [layer.num_units for layer in stretch.chunk.layers], wanted)


def _smallest_numbers(chunk: Chunk, i: int, wanted: int, active: Tensor, key: int) -> Tensor:
    places = torch.arange(chunk.layers[i].num_units, device=chunk.device)
    numbers = chance.bits(key, places)
    numbers.masked_fill_(active[chunk.offsets[i] : chunk.offsets[i + 1]], torch.iinfo(torch.int64).max)
    return k_smallest(numbers, wanted) + chunk.offsets[i]


def _first_in_sequence(
    chunk: Chunk, layers: list[int], wanted: Sequence[int], free: Sequence[int], active: Tensor, key: int
) -> Tensor:
    first_free = drawing.first_free if can_use_triton(chunk.device) else _first_free
    num_units = [chunk.layers[i].num_units for i in layers]
    slack = 1.0
    while True:
        found = first_free(
            active,
            key,
            [chunk.first + i for i in layers],
            num_units,
            [chunk.offsets[i] for i in layers],
            [wanted[i] for i in layers],
            [_draws_for(n, free[i], wanted[i], slack) for n, i in zip(num_units, layers, strict=True)],
        )
        if found is not None:
            return found
        slack *= 2


def _first_free(
    active: Tensor,
    key: int,
    layers: list[int],
    num_units: list[int],
    offsets: list[int],
    wanted: list[int],
    lengths: list[int],
) -> Tensor | None:
    """What `kernels.drawing.first_free` does, in plain torch."""
    keys = [chance.signed(key) for key in chance.keys(key, layers)]
    starts = list(accumulate(lengths, initial=0))[:-1]
    numbers = [starts, keys, num_units, offsets, wanted, lengths]
    start, of_layer, units, offset, want, _ = _per_draw(numbers, active.device)
    counters = torch.arange(sum(lengths), device=active.device).sub_(start)
    places = chance.bits(of_layer, counters).remainder_(units).add_(offset)
    good = _is_first(places).logical_and_(active.index_select(0, places).logical_not_())
    rank = good.cumsum(0)
    rank_at_start = torch.nn.functional.pad(rank, (1, 0)).index_select(0, start.expand_as(rank))
    found = places.index_select(0, positions_of(good.logical_and_(rank.sub_(rank_at_start) <= want)))
    return found if len(found) == sum(wanted) else None


def _per_draw(numbers: list[list[int]], device: torch.device) -> Tensor:
    """Numbers of each layer repeated for each of its draws, whose number comes last; with one layer once for all."""
    table = torch.tensor(numbers).to(device)
    lengths = numbers[-1]
    return table if len(lengths) == 1 else table.repeat_interleave(table[-1], dim=1, output_size=sum(lengths))


def _draws_for(num_units: int, free: int, wanted: int, slack: float) -> int:
    """Enough draws to find `wanted` different free places nearly always."""
    expected = num_units * log(free / (free - wanted))
    return ceil(slack * (expected + 5 * sqrt(expected) + 8))


def _is_first(places: Tensor) -> Tensor:
    """Whether each entry is the first of its value."""
    shift = len(places).bit_length()
    ordered = ascending(torch.arange(len(places), device=places.device).add_(places << shift))
    values = ordered >> shift
    differs = torch.ones_like(values, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=differs[1:])
    return torch.empty_like(differs).scatter_(0, ordered.bitwise_and_((1 << shift) - 1), differs)
