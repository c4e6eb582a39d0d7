"""Which units go: active units of a stretch, mostly as flags over them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regrow.core.row import Stretch
from regrow.core.selections import k_smallest_each


def below_threshold(stretch: Stretch, threshold: float) -> tuple[Tensor, list[int]]:
    """All active units smaller than the threshold, strictly (DSR, appendix A): where they are, and how many per layer.

    The threshold is rounded to float32, so that it is the same number for layers of any precision.
    """
    return stretch.below(float(np.float32(threshold)))


def smallest_of_each(stretch: Stretch, num_gone: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
    """The `num_gone` smallest active units of each layer (SET, RigL, SNFS, gradual pruning)."""
    return stretch.smallest(num_gone), num_gone


def smallest(magnitude: Tensor, counts: Sequence[int], num_gone: Sequence[int]) -> Tensor:
    """The `num_gone` smallest of each layer, as flags; as one layer, the smallest globally."""
    gone = torch.zeros_like(magnitude, dtype=torch.bool)
    return gone.index_fill_(0, k_smallest_each(magnitude, counts, num_gone), True)


def sign_crossed(weights: Tensor, signs: Tensor) -> Tensor:
    """All weights that have left the side of zero they belong to; `signs` is true for the positive side (DeepR)."""
    return torch.where(signs, weights < 0, weights > 0)


def at_most(gone: Tensor, scores: Tensor, counts: Sequence[int], limits: Sequence[int]) -> Tensor:
    """Spare the largest of those that were to go wherever a layer would lose more than its limit."""
    num_gone = [
        min(int(flags.count_nonzero()), limit)
        for flags, limit in zip(torch.split(gone, list(counts)), limits, strict=True)
    ]
    return smallest(scores.masked_fill(~gone, torch.inf), counts, num_gone)


def fraction_of_each(fraction: float, active: Sequence[int], limits: Sequence[int]) -> list[int]:
    """A fraction of each layer's active units, but never its last one, nor more than its limit."""
    return [min(round(fraction * n), n - 1, limit) for n, limit in zip(active, limits, strict=True)]
