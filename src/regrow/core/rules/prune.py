"""Which units go: how many of each layer, and scores of which the smallest go."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import Quantities


def below_threshold(evidence: Evidence, threshold: float) -> Units:
    """All units smaller than the threshold, strictly (DSR, appendix A)."""
    return evidence.below(threshold)


def fraction_of_each(fraction: float, active: Sequence[int], limits: Sequence[int]) -> list[int]:
    """A fraction of each layer's active units, but never its last one, nor more than its limit."""
    return [min(round(fraction * n), n - 1, limit) for n, limit in zip(active, limits, strict=True)]


def distance_from_zero(units: Quantities) -> Tensor:
    """How far a weight is on its own side of zero; negative for one that has crossed it (DeepR)."""
    return torch.where(units.sign, units.weight, -units.weight)


def magnitude_and_gradient(units: Quantities, mix: float) -> Tensor:
    """abs(w) + mix * abs(gradient): small weights that the loss does not ask to change go first (MEST)."""
    return units.weight.abs() + mix * units.gradient.abs()
