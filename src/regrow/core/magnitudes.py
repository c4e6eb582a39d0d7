"""Mean magnitudes of coarse units that are the same in whatever order, and on however many ranks, they are added up.

Every magnitude is divided by a power of two that all of its unit have in common, and rounded to so few bits that as
many as there are in the unit add up without any further rounding. What that leaves out is far below single precision.
"""

import torch
from torch import Tensor

_EXPONENT = 0x7FF << 52
_LEAST = 1 << 52  # the smallest exponent of a normal number


def scale_of(largest: Tensor) -> Tensor:
    """The power of two at or below the largest magnitude of each unit (float64)."""
    return largest.view(torch.int64).bitwise_and(_EXPONENT).clamp_(min=_LEAST).view(torch.float64)


def summands(magnitudes: Tensor, scale: Tensor, unit_size: int) -> Tensor:
    """Numbers in proportion to the magnitudes, of which as many as are in a unit add up exactly."""
    room = 2.0 ** (unit_size.bit_length() + 1)
    return magnitudes.div(scale).add_(room).sub_(room)


def mean_of(total: Tensor, scale: Tensor, unit_size: int) -> Tensor:
    """The mean magnitude of each unit, of the sum of its numbers."""
    return total / unit_size * scale
