"""A model's tensors as they are written: those that are spread over ranks are made whole, one after the other."""

from collections.abc import Mapping

import torch
from torch import Tensor

from regrow.distributed.dtensor import whole
from regrow.files.format import pick
from regrow.files.stored import DTYPES, SparseTensor
from regrow.storage.check_masks import num_strays


def collect(
    tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, keeps: bool
) -> tuple[dict[str, Tensor], dict[str, SparseTensor]]:
    """Those that are stored dense, and the active values of the others; nothing where a rank does not keep them.

    Without masks whatever is not 0 counts as active.
    """
    dense: dict[str, Tensor] = {}
    parts: dict[str, SparseTensor] = {}
    for name in [*(masks or ()), *(name for name in tensors if name not in (masks or ()))]:
        tensor = whole(tensors[name]).detach().cpu()
        mask = _nonzeros(tensor) if masks is None else _checked(name, tensor, masks)
        if keeps and mask is not None:
            parts[name] = pick(tensor, mask)
        elif keeps:
            dense[name] = tensor
    return dense, parts


def _checked(name: str, tensor: Tensor, masks: Mapping[str, Tensor]) -> Tensor | None:
    """The mask of a tensor, if it has one; refused if it is not that of these weights."""
    if name not in masks:
        return None
    mask = whole(masks[name]).cpu()
    if count := num_strays(tensor, mask):
        raise ValueError(
            f"{name} is not 0 at {count:,} of the places where the sparsifier has no weight, so the file would be "
            "of another network; save the weights that it trained, or leave it out to keep whatever is not 0"
        )
    return mask


def _nonzeros(tensor: Tensor) -> Tensor | None:
    """Where something is, if a tensor gets smaller that way."""
    if tensor.dtype not in DTYPES.values() or tensor.dim() == 0:
        return None
    mask = (tensor != 0) | torch.signbit(tensor)  # a negative zero is something too
    bits = 8 * tensor.element_size()
    return mask if bits * int(mask.count_nonzero()) + mask.numel() < bits * mask.numel() else None
