"""Which units come: positions in a chunk that were free before pruning."""

from collections.abc import Callable, Sequence
from math import ceil, log, sqrt

import torch
from torch import Tensor

from regrow import chance
from regrow.row import Chunk, Stretch
from regrow.select import k_smallest, positions_of


def at_random(
    chunk: Chunk, wanted: Sequence[int], free: Sequence[int], is_active: Callable[[Tensor], Tensor], keys: Sequence[int]
) -> Tensor:
    """`wanted[l]` places of each layer, uniform among its free ones, as a function of the layer's key.

    Each layer has an endless random sequence of its places; it takes the first that are free and not yet taken. By
    symmetry every set of free places is equally likely, and drawing more of the sequence than needed changes nothing,
    so that the result does not depend on device or chunks. A layer that wants more than an eighth of its free places
    would have to draw too long: there every place gets a random number and the free ones with the smallest are taken.
    """
    few = [i for i, n in enumerate(wanted) if 0 < 8 * n <= free[i]]
    many = [i for i, n in enumerate(wanted) if 8 * n > free[i]]
    found = [_smallest_numbers(chunk, i, wanted[i], is_active, keys[i]) for i in many]
    if few:
        found.append(_first_in_sequence(chunk, few, wanted, free, is_active, keys))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=chunk.device)


def by_score(stretch: Stretch, wanted: Sequence[int]) -> Tensor:
    """The free places of each layer with the largest scores; among equal ones those that come first."""
    chunk = stretch.chunk
    found = [torch.empty(0, dtype=torch.int64, device=chunk.device)]
    for i, (taken, count) in enumerate(zip(chunk.split(stretch.active), wanted, strict=True)):
        if count:
            lowness = stretch.scores(i).neg().masked_fill_(taken, torch.inf)
            found.append(positions_of(k_smallest(lowness, count)) + chunk.offsets[i])
    return torch.cat(found)


def _smallest_numbers(chunk: Chunk, i: int, wanted: int, is_active: Callable[[Tensor], Tensor], key: int) -> Tensor:
    places = torch.arange(chunk.layers[i].num_units, device=chunk.device)
    numbers = chance.bits(key, places)
    numbers.masked_fill_(is_active(places + chunk.offsets[i]), torch.iinfo(torch.int64).max)
    return positions_of(k_smallest(numbers, wanted)) + chunk.offsets[i]


def _first_in_sequence(
    chunk: Chunk,
    layers: Sequence[int],
    wanted: Sequence[int],
    free: Sequence[int],
    is_active: Callable[[Tensor], Tensor],
    keys: Sequence[int],
) -> Tensor:
    total = sum(wanted[i] for i in layers)
    slack = 1.0
    while True:
        lengths = [_draws_for(chunk.layers[i].num_units, free[i], wanted[i], slack) for i in layers]
        starts = [sum(lengths[:j]) for j in range(len(lengths))]
        table = torch.tensor(
            [
                starts,
                [chance.signed(keys[i]) for i in layers],
                [chunk.layers[i].num_units for i in layers],
                [chunk.offsets[i] for i in layers],
                [wanted[i] for i in layers],
                lengths,
            ]
        ).to(chunk.device)
        of_draw = torch.arange(len(layers), device=chunk.device).repeat_interleave(table[5], output_size=sum(lengths))
        start, key, num_units, offset, want = table[:5, of_draw]
        counter = torch.arange(len(of_draw), device=chunk.device) - start
        places = chance.bits(key, counter).remainder_(num_units).add_(offset)
        good = _is_first(places) & ~is_active(places)
        rank = good.cumsum(0)
        rank_at_start = torch.nn.functional.pad(rank, (1, 0))[start]
        found = places[good & (rank - rank_at_start <= want)]
        if len(found) == total:
            return found
        slack *= 2


def _draws_for(num_units: int, free: int, wanted: int, slack: float) -> int:
    """Enough draws to find `wanted` different free places nearly always."""
    expected = num_units * log(free / (free - wanted))
    return ceil(slack * (expected + 5 * sqrt(expected) + 8))


def _is_first(places: Tensor) -> Tensor:
    """Whether each entry is the first of its value."""
    ordered, order = places.sort(stable=True)
    differs = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=differs[1:])
    return torch.empty_like(differs).scatter_(0, order, differs)
