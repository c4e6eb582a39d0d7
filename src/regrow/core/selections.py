"""Picking exactly k out of many by score."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 1 << 14
_SAMPLE_OF_PART = 1 << 12
_SHORT = 1 << 18


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
