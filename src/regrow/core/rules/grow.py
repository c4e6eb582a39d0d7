"""Which units come: scores of free places, of which the largest come."""

from torch import Tensor

from regrow.core.quantities import Quantities


def mean_gradient_magnitude(units: Quantities) -> Tensor:
    """Where the loss would fall most for a small change, by the running mean of its gradients (SNFS)."""
    return units.mean_gradient.abs()
