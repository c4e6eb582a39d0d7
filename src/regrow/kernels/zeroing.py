"""Setting tensors to 0 where a mask is false: filling, not multiplying, so that an inf there does not become NaN."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.kernels import can_use_triton, kernel, on

_TENSORS_PER_LAUNCH = 64
_BLOCK = 2048


def zero_inactive(tensors: Sequence[Tensor], masks: Sequence[Tensor], device: torch.device) -> None:
    """Zero every tensor where its mask is false, in place; on a GPU in one launch for many tensors.

    The masks are dense in memory; a tensor laid out otherwise than its mask takes a slower way.
    """
    if not can_use_triton(device):
        for tensor, mask in zip(tensors, masks, strict=True):
            _fill(tensor, mask)
        return
    alike = []
    for pair in zip(tensors, masks, strict=True):
        if pair[0].stride() == pair[1].stride():
            alike.append(pair)
        else:
            _fill(*pair)
    for start in range(0, len(alike), _TENSORS_PER_LAUNCH):
        some, their_masks = zip(*alike[start : start + _TENSORS_PER_LAUNCH], strict=True)
        sizes = tuple(mask.numel() for mask in their_masks)
        with on(device):
            kernel("zero_where_false")[(-(-max(sizes) // _BLOCK), len(some))](some, their_masks, sizes, _BLOCK)


def _fill(tensor: Tensor, mask: Tensor) -> None:
    torch.where(mask, tensor, tensor.new_zeros(()), out=tensor)
