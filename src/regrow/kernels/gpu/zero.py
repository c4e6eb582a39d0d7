"""Setting tensors to 0 where a mask is false, on a GPU, many in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.kernels.gpu import kernel, on

_TENSORS_PER_LAUNCH = 64
_BLOCK = 2048


class Masks:
    """The masks of some layers on one GPU, all dense in memory, and what it needs to know of them."""

    def __init__(self, masks: Sequence[Tensor], device: torch.device) -> None:
        self.masks = masks
        self.device = device
        self._strides = [mask.stride() for mask in masks]
        sizes = [mask.numel() for mask in masks]
        self._table = torch.tensor([[mask.data_ptr() for mask in masks], sizes]).to(device)
        self._num_blocks = max(-(-max(sizes) // _BLOCK), 1)  # of shards all may be empty

    def zero_inactive(self, tensors: Sequence[Sequence[Tensor]]) -> bool:
        """Zero the tensors of each layer where its mask is false, in place; whether that was possible in one launch.

        It is in the usual case: every layer brings as many tensors, laid out in memory like its mask.
        """
        each = len(tensors[0])
        if not each or any(len(own) != each for own in tensors):
            return False
        flat = [tensor for own in tensors for tensor in own]
        if [tensor.stride() for tensor in flat] != [stride for stride in self._strides for _ in range(each)]:
            return False
        self._launch(flat, each)
        return True

    def _launch(self, tensors: list[Tensor], each: int) -> None:
        at_once = max(_TENSORS_PER_LAUNCH // each, 1) * each
        with on(self.device):
            for start in range(0, len(tensors), at_once):
                some = tuple(tensors[start : start + at_once])
                kernel("zero_where_false")[(self._num_blocks, len(some))](
                    some, self._table, len(self.masks), start // each, each, _BLOCK
                )
