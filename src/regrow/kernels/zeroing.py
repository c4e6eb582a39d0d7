"""Setting tensors to 0 where a mask is false: filling, not multiplying, so that an inf there does not become NaN."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_TENSORS_PER_LAUNCH = 32
_BLOCK = 2048


def zero_inactive(tensors: Sequence[Tensor], masks: Sequence[Tensor]) -> None:
    """Zero every tensor where its mask is false, in place; on a GPU in one launch for many tensors."""
    fast = []
    for tensor, mask in zip(tensors, masks, strict=True):
        if tensor.is_cuda and has_triton() and tensor.stride() == mask.stride() and _is_dense(mask):
            fast.append((tensor, mask))
        else:
            torch.where(mask, tensor, tensor.new_zeros(()), out=tensor)
    for start in range(0, len(fast), _TENSORS_PER_LAUNCH):
        _launch(fast[start : start + _TENSORS_PER_LAUNCH])


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled here; tuples as kernel arguments came with Triton 3.3."""
    if find_spec("triton") is None:
        return False
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


def _is_dense(mask: Tensor) -> bool:
    strides = sorted(zip(mask.stride(), mask.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _launch(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    tensors, masks = zip(*pairs, strict=True)
    sizes = tuple(mask.numel() for mask in masks)
    grid = (-(-max(sizes) // _BLOCK), len(pairs))
    with torch.cuda.device(tensors[0].device):
        _kernel()[grid](tensors, masks, sizes, _BLOCK)


@cache
def _kernel() -> Any:
    from regrow.kernels.zeroing_triton import zero_where_false

    return zero_where_false
