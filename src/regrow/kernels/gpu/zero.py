"""Setting tensors to 0 where a mask is false: filling, not multiplying, so that an inf there does not become NaN."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.kernels.gpu import can_use_triton, kernel, on

_TENSORS_PER_LAUNCH = 64
_BLOCK = 2048


class Masks:
    """The masks of some layers on one device, all dense in memory, and what a GPU needs to know of them."""

    def __init__(self, masks: Sequence[Tensor], device: torch.device) -> None:
        self.masks = masks
        self.device = device
        self._strides = [mask.stride() for mask in masks]
        self._is_fast = can_use_triton(device)
        if self._is_fast:
            sizes = [mask.numel() for mask in masks]
            self._table = torch.tensor([[mask.data_ptr() for mask in masks], sizes]).to(device)
            self._num_blocks = -(-max(sizes) // _BLOCK)

    def zero_inactive(self, tensors: Sequence[Sequence[Tensor]]) -> None:
        """Zero the tensors of each layer where its mask is false, in place; on a GPU in one launch for many.

        The usual case is the fast one: every layer brings as many tensors, laid out in memory like its mask.
        """
        each = len(tensors[0])
        if self._is_fast and each and all(len(own) == each for own in tensors):
            flat = [tensor for own in tensors for tensor in own]
            if [tensor.stride() for tensor in flat] == [stride for stride in self._strides for _ in range(each)]:
                self._launch(flat, each)
                return
        for own, mask in zip(tensors, self.masks, strict=True):
            for tensor in own:
                torch.where(mask, tensor, tensor.new_zeros(()), out=tensor)

    def _launch(self, tensors: list[Tensor], each: int) -> None:
        at_once = max(_TENSORS_PER_LAUNCH // each, 1) * each
        with on(self.device):
            for start in range(0, len(tensors), at_once):
                some = tuple(tensors[start : start + at_once])
                kernel("zero_where_false")[(self._num_blocks, len(some))](
                    some, self._table, len(self.masks), start // each, each, _BLOCK
                )
