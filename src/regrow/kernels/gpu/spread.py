"""Values that positions share, on a GPU: spread over the positions, and gradients added up for each, in few launches.

The same numbers as `storage.sharing` has by many calls of torch, to the last bit.
"""

import torch
from torch import Tensor

from regrow.kernels.gpu import can_use_triton, kernel, on

_BLOCK = 1024


def can_spread(values: Tensor) -> bool:
    return values.dtype == torch.float32 and can_use_triton(values.device)


def spread(values: Tensor, num_positions: int, key: int) -> Tensor:
    """The value of each position, with its sign."""
    weight = values.new_empty(num_positions)
    with on(values.device):
        kernel("spread_values")[_programs(num_positions)](
            values.contiguous(), weight, key, len(values), num_positions, BLOCK=_BLOCK
        )
    return weight


def collect(pieces: Tensor, num_values: int, key: int, share: float) -> Tensor:
    """For each value the signed sum over its positions, added up in whole multiples of `share` of the largest piece."""
    pieces = pieces.contiguous()
    largest = torch.linalg.vector_norm(pieces, torch.inf)
    sums = torch.zeros(2 * num_values, dtype=torch.int64, device=pieces.device)
    gradient = pieces.new_empty(num_values)
    with on(pieces.device):
        kernel("add_by_value")[_programs(len(pieces))](
            pieces, largest, sums, key, num_values, len(pieces), share, BLOCK=_BLOCK
        )
        kernel("take_differences")[_programs(num_values)](sums, largest, gradient, num_values, share, BLOCK=_BLOCK)
    return gradient


def _programs(num_elements: int) -> tuple[int]:
    return (-(-num_elements // _BLOCK),)
