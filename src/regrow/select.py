"""Picking exactly k out of many by score."""

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 1 << 14


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


def _kth_smallest(scores: Tensor, k: int) -> Tensor:
    if scores.device.type == "cpu":
        return torch.from_numpy(np.partition(scores.numpy(), k - 1)[k - 1 : k])
    return scores.topk(k, largest=False, sorted=False).values.amax()
