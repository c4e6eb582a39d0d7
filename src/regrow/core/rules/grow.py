"""Which units come: positions in a chunk that were free before pruning."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log, sqrt

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Active, Chunk, Listed, Stretch, is_active
from regrow.core.selections import ascending, k_smallest, positions_of
from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu import draw as drawing

# Places that a layer whose active units are listed looks at together.
_TILE = 1 << 22
_LAST = torch.iinfo(torch.int64).max


def at_random(chunk: Chunk, wanted: Sequence[int], free: Sequence[int], active: Active, key: int) -> Tensor:
    """`wanted[l]` places of each layer, uniform among its free ones, as a function of the key and the layer's number.

    Each layer has an endless random sequence of its places; it takes the first that are free and not yet taken. By
    symmetry every set of free places is equally likely, and drawing more of the sequence than needed changes nothing,
    so that the result does not depend on device or chunks. A layer that wants more than an eighth of its free places
    would have to draw too long: there every place gets a random number and the free ones with the smallest are taken.
    """
    many = [i for i, n in enumerate(wanted) if 8 * n > free[i]]
    few = [n if 8 * n <= free[i] else 0 for i, n in enumerate(wanted)]
    found = [_smallest_numbers(chunk, i, wanted[i], active, random.key(key, chunk.first + i)) for i in many]
    if any(few):
        if isinstance(active, Tensor) and can_use_triton(chunk.device):
            found.append(drawing.first_free(chunk, few, active, key))
        else:
            found.append(_first_free(chunk, few, free, active, key))
    if len(found) == 1:
        return found[0]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=chunk.device)


def by_score(stretch: Stretch, wanted: Sequence[int]) -> Tensor:
    """The free places of each layer with the largest scores; among equal ones those that come first."""
    return stretch.best_free(wanted)


def _smallest_numbers(chunk: Chunk, i: int, wanted: int, active: Active, key: int) -> Tensor:
    begin, end = chunk.offsets[i], chunk.offsets[i + 1]
    if isinstance(active, Listed):
        own = Listed(active.within(begin, end) - begin)
        return _smallest_in_tiles(end - begin, wanted, own, key) + begin
    numbers = random.bits(key, torch.arange(end - begin, device=chunk.device))
    numbers.masked_fill_(active[begin:end], _LAST)
    return k_smallest(numbers, wanted) + begin


def _smallest_in_tiles(num_units: int, wanted: int, active: Listed, key: int) -> Tensor:
    """The same without a number for every place at once: most are above a bound that nearly always suffices."""
    free = num_units - len(active.positions)
    slack = 1.0
    while True:
        share = min((wanted + slack * (6 * sqrt(wanted) + 8)) / free, 1.0)
        bound = min(int((share - 0.5) * 2.0**64), _LAST)
        tiles = [
            _numbers_up_to(bound, start, min(start + _TILE, num_units), active, key)
            for start in range(0, num_units, _TILE)
        ]
        places, numbers = (torch.cat(parts) for parts in zip(*tiles, strict=True))
        if len(places) >= wanted:
            return places.index_select(0, k_smallest(numbers, wanted))
        slack *= 2


def _numbers_up_to(bound: int, begin: int, end: int, active: Listed, key: int) -> tuple[Tensor, Tensor]:
    """Places of a tile with random numbers up to a bound, and these; active ones count as the largest number."""
    numbers = random.bits(key, torch.arange(begin, end, device=active.positions.device))
    numbers.index_fill_(0, active.within(begin, end) - begin, _LAST)
    low = positions_of(numbers <= bound)
    return low + begin, numbers.index_select(0, low)


def _first_free(chunk: Chunk, wanted: Sequence[int], free: Sequence[int], active: Active, key: int) -> Tensor:
    """What `kernels.drawing.first_free` does, in plain torch."""
    layers = [i for i, n in enumerate(wanted) if n]
    slack = 1.0
    while True:
        lengths = [_draws_for(chunk.layers[i].num_units, free[i], wanted[i], slack) for i in layers]
        found = _free_among(chunk, layers, wanted, lengths, active, key)
        if len(found) == sum(wanted):
            return found
        slack *= 2


def _free_among(
    chunk: Chunk, layers: list[int], wanted: Sequence[int], lengths: list[int], active: Active, key: int
) -> Tensor:
    """Up to `wanted` different free places of each of some layers out of its first `lengths` draws."""
    numbers = [
        list(accumulate(lengths, initial=0))[:-1],
        [random.signed(key) for key in random.keys(key, [chunk.first + i for i in layers])],
        [chunk.layers[i].num_units for i in layers],
        [chunk.offsets[i] for i in layers],
        [wanted[i] for i in layers],
        lengths,
    ]
    start, of_layer, units, offset, want, _ = _per_draw(numbers, chunk.device)
    counters = torch.arange(sum(lengths), device=chunk.device).sub_(start)
    places = random.bits(of_layer, counters).remainder_(units).add_(offset)
    good = _is_first(places).logical_and_(is_active(active, places).logical_not_())
    rank = good.cumsum(0)
    rank_at_start = torch.nn.functional.pad(rank, (1, 0)).index_select(0, start.expand_as(rank))
    return places.index_select(0, positions_of(good.logical_and_(rank.sub_(rank_at_start) <= want)))


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
