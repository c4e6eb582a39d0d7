"""Picking units exactly, on flat tensors: the k smallest, free places at random, means that no order changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil, frexp, isfinite, isnan, log, nan, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Chunk

Kernels = Mapping[str, Callable[..., Any]]
"""What a device does in few launches, by the name of the selection: asked first, and free to answer None."""

_SAMPLE = 1 << 14
_SAMPLE_OF_PART = 1 << 12
_SHORT = 1 << 18
_TILE = 1 << 22  # places that a layer whose active units are listed looks at together
_LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Listed:
    """A topology as the ascending positions of its active units, where flags for all places would be too many."""

    positions: Tensor

    def within(self, begin: int, end: int) -> Tensor:
        """The positions from `begin` up to `end`."""
        bounds = torch.tensor([begin, end], device=self.positions.device)
        first, last = torch.searchsorted(self.positions, bounds).tolist()
        return self.positions[first:last]


Active = Tensor | Listed
"""Which units of a chunk are active: a flag for each, or a list."""


def positions_of(flags: Tensor) -> Tensor:
    """Where a flat bool tensor is true, ascending."""
    if flags.device.type == "cpu":  # several times faster than torch's own where few are true
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.nonzero().flatten()


def ascending(numbers: Tensor) -> Tensor:
    """Whole numbers in order."""
    if numbers.device.type == "cpu":  # several times faster than torch's own
        return torch.from_numpy(np.sort(numbers.numpy()))
    return numbers.sort().values


def k_smallest(scores: Tensor, k: int) -> Tensor:
    """Where the k smallest scores are, ascending; among equal ones those that come first.

    >>> k_smallest(torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0]), 2).tolist()
    [1, 3]
    """
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    candidates = _likely(scores, k)
    if candidates is not None:
        return candidates[k_smallest(scores.index_select(0, candidates), k)]
    bound = _kth_smallest(scores, k)
    chosen = positions_of(scores <= bound)
    surplus = len(chosen) - k
    if surplus:
        tied = positions_of(scores == bound)
        chosen = chosen[~torch.isin(chosen, tied[len(tied) - surplus :], assume_unique=True)]
    return chosen


def _likely(scores: Tensor, k: int) -> Tensor | None:
    """All positions up to a bound that a sample suggests, if they surely hold the k smallest and are few.

    On a CPU this is several times faster than selecting among all; on a GPU it would wait for the device once more.
    """
    stride = len(scores) // _SAMPLE | 1  # odd, so that kernels do not fall into step with it
    if scores.device.type != "cpu" or stride < 8 or 8 * k > len(scores):
        return None
    sample = scores[::stride]
    rank = min(int(1.1 * k * len(sample) / len(scores)) + 64, len(sample))
    candidates = positions_of(scores <= _kth_smallest(sample, rank))
    return candidates if k <= len(candidates) <= len(scores) // 4 else None


def k_smallest_each(scores: Tensor, lengths: Sequence[int], ks: Sequence[int]) -> Tensor:
    """Where the ks[i] smallest of each of some consecutive parts are, ascending; among equal ones the first.

    On a CPU part by part; on a GPU all at once, by sorting, after a sampled bound has left few of many.

    >>> k_smallest_each(torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0]), [3, 2], [1, 1]).tolist()
    [1, 3]
    """
    if scores.is_cuda and scores.dtype == torch.float32:
        return _by_sorting(scores, lengths, ks)
    starts = accumulate(lengths, initial=0)
    parts = zip(torch.split(scores, list(lengths)), ks, starts, strict=False)
    return torch.cat([k_smallest(part, k) + start for part, k, start in parts])


def _by_sorting(scores: Tensor, lengths: Sequence[int], ks: Sequence[int]) -> Tensor:
    length, k = torch.tensor([lengths, ks]).to(scores.device)
    if len(scores) > _SHORT and 8 * sum(ks) < len(scores):
        candidates = _candidates(scores, list(lengths), length, k)
        counts = torch.searchsorted(candidates, length.cumsum(0)).diff(prepend=length.new_zeros(1)).tolist()
        if len(candidates) <= len(scores) // 4 and all(n >= k for n, k in zip(counts, ks, strict=True)):
            return candidates[_by_sorting(scores.index_select(0, candidates), counts, ks)]
    part = torch.arange(len(lengths), device=scores.device).repeat_interleave(length, output_size=len(scores))
    bits = (scores + 0.0).view(torch.int32)  # adding 0 makes -0 and 0 the same
    in_order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # floats compare like these integers
    order = part.bitwise_left_shift_(32).add_(in_order).sort(stable=True).indices
    skipped = (length - k).cumsum(0) - (length - k)  # what earlier parts leave untaken
    taken = skipped.repeat_interleave(k, output_size=sum(ks)).add_(torch.arange(sum(ks), device=scores.device))
    return ascending(order.index_select(0, taken))


def _candidates(scores: Tensor, lengths: list[int], length: Tensor, k: Tensor) -> Tensor:
    """Positions up to a bound in each part that a sample suggests for its k smallest."""
    steps = torch.arange(_SAMPLE_OF_PART, device=scores.device)
    start = length.cumsum(0) - length
    sample = scores[start[:, None] + steps * length[:, None] // _SAMPLE_OF_PART].sort(1).values
    rank = (1.2 * k / length * _SAMPLE_OF_PART).long().add_(48).clamp_(max=_SAMPLE_OF_PART - 1)
    bound = sample.gather(1, rank[:, None]).flatten()
    flags = torch.empty_like(scores, dtype=torch.bool)
    for part, limit, out in zip(torch.split(scores, lengths), bound, torch.split(flags, lengths), strict=True):
        torch.le(part, limit, out=out)  # a bound for every score at once would take many times the memory
    return positions_of(flags)


def _kth_smallest(scores: Tensor, k: int) -> Tensor:
    if scores.device.type == "cpu":
        return torch.from_numpy(np.partition(scores.numpy(), k - 1)[k - 1 : k])
    return scores.topk(k, largest=False, sorted=False).values.amax()


def draw_free(
    chunk: Chunk, wanted: Sequence[int], free: Sequence[int], active: Active, key: int, kernels: Kernels
) -> Tensor:
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
        if isinstance(active, Tensor) and "draw_free" in kernels:
            found.append(kernels["draw_free"](chunk, few, active, key))
        else:
            found.append(_first_free(chunk, few, free, active, key))
    if len(found) == 1:
        return found[0]
    return ascending(torch.cat(found)) if found else torch.empty(0, dtype=torch.int64, device=chunk.device)


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
        bound = bound_for(wanted, free, slack)
        tiles = [
            _numbers_up_to(bound, start, min(start + _TILE, num_units), active, key)
            for start in range(0, num_units, _TILE)
        ]
        places, numbers = (torch.cat(parts) for parts in zip(*tiles, strict=True))
        if len(places) >= wanted:
            return places.index_select(0, k_smallest(numbers, wanted))
        slack *= 2


def bound_for(wanted: int, free: int, slack: float) -> int:
    """A bound up to which, nearly always, there are `wanted` of as many random numbers as there are free places."""
    share = min((wanted + slack * (6 * sqrt(wanted) + 8)) / free, 1.0)
    return min(int((share - 0.5) * 2.0**64), _LAST)


def _numbers_up_to(bound: int, begin: int, end: int, active: Listed, key: int) -> tuple[Tensor, Tensor]:
    """Places of a tile with random numbers up to a bound, and these; active ones count as the largest number."""
    numbers = random.bits(key, torch.arange(begin, end, device=active.positions.device))
    numbers.index_fill_(0, active.within(begin, end) - begin, _LAST)
    low = positions_of(numbers <= bound)
    return low + begin, numbers.index_select(0, low)


def _first_free(chunk: Chunk, wanted: Sequence[int], free: Sequence[int], active: Active, key: int) -> Tensor:
    """What the kernel `draw_free` does, in plain torch."""
    layers = [i for i, n in enumerate(wanted) if n]
    slack = 1.0
    while True:
        lengths = [draws_for(chunk.layers[i].num_units, free[i], wanted[i], slack) for i in layers]
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


def is_active(active: Active, places: Tensor) -> Tensor:
    """Whether the units at some places are active."""
    if isinstance(active, Tensor):
        return active.index_select(0, places)
    if not len(active.positions):
        return torch.zeros_like(places, dtype=torch.bool)
    at = torch.searchsorted(active.positions, places).clamp_(max=len(active.positions) - 1)
    return active.positions.index_select(0, at) == places


def which_are_free(active: Active, places: Tensor) -> Tensor:
    """Which of some ascending places are not active, each once."""
    is_free = is_active(active, places).logical_not_()
    is_free[1:] &= places[1:] != places[:-1]
    return positions_of(is_free)


def free_among(active: Active, places: Tensor) -> Tensor:
    """Those of some places that are not active, ascending, each once."""
    places = ascending(places)
    return places.index_select(0, which_are_free(active, places))


def _per_draw(numbers: list[list[int]], device: torch.device) -> Tensor:
    """Numbers of each layer repeated for each of its draws, whose number comes last; with one layer once for all."""
    table = torch.tensor(numbers).to(device)
    lengths = numbers[-1]
    return table if len(lengths) == 1 else table.repeat_interleave(table[-1], dim=1, output_size=sum(lengths))


def draws_for(num_units: int, free: int, wanted: int, slack: float) -> int:
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


def exact_means(values: Tensor, lengths: Sequence[int]) -> list[float]:
    """The mean of each of some consecutive parts, rounded once: whatever the order of adding up, it is the same.

    Numbers are cut into leading parts that are multiples of one power of two, few enough of which add up without
    rounding, and rests, which are cut in turn (Rump, Ogita & Oishi, 2008). NaN for all where a value is not finite.

    >>> exact_means(torch.tensor([1e16, 1.0, 1.0, -1e16, 3.0, 4.0], dtype=torch.float64), [4, 2])
    [0.5, 3.5]
    """
    totals = [Fraction(0)] * len(lengths)
    top = _largest_magnitude(values)
    if not isfinite(top):
        return [nan] * len(lengths)
    rest = values.to(torch.float64, copy=True)
    bits = max(lengths, default=0).bit_length() + 1
    while top > 0:
        if top < 2.0**900:
            unit = 2.0 ** (frexp(top)[1] + bits)
            leading = (rest + unit).sub_(unit)
            sums = torch.stack([own.sum() for own in _split(leading, lengths)]).tolist()
            totals = [total + Fraction(more) for total, more in zip(totals, sums, strict=True)]
        else:  # to which nothing can be added
            leading = rest.masked_fill(rest.abs() < 2.0**900, 0)
            parts = [sum(map(Fraction, own.tolist())) for own in _split(leading, lengths)]
            totals = [total + more for total, more in zip(totals, parts, strict=True)]
        top = _largest_magnitude(rest.sub_(leading))
    return [float(total / max(length, 1)) for total, length in zip(totals, lengths, strict=True)]


def _largest_magnitude(values: Tensor) -> float:
    if not len(values):
        return 0.0
    smallest, largest = (float(end) for end in torch.stack(values.aminmax()).tolist())
    return nan if isnan(smallest) else max(-smallest, largest)


def _split(values: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
    return torch.split(values, list(lengths))
