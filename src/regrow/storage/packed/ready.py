"""Packed linear layers on one sample that nothing is learnt from: a model in use, where calls cost more than sums.

What a layer was last computed with is remembered with the pack. As long as all of it is the same, and in the same
memory, nothing is looked at a second time.
"""

from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from regrow.kernels.cpu.linear import vector_forward
from regrow.kernels.cpu.pattern import Pattern
from regrow.storage.computed_weights import expanders_of
from regrow.storage.packed.compute import way_of
from regrow.storage.packed.places import PatternPlaces, Places
from regrow.storage.packed.slot import Slot


class Ready(NamedTuple):
    """What a layer was found fit for: its places, values and bias, where that lies, and samples of a shape."""

    pattern: Pattern
    made_of: tuple[Places, Tensor, Tensor | None]
    case: tuple[Any, ...]


def is_learning(*tensors: Tensor | None) -> bool:
    """Whether autograd, or another that derives functions, is to know what becomes of some tensors."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def on_one_sample(module: nn.Linear, x: Tensor) -> Tensor | None:
    """The output of a layer; None where it is not to be had in this way."""
    if not 0 < x.numel() == module.in_features or type(x) is not Tensor or not x.is_cpu or x.is_neg():
        return None
    slot: Slot = expanders_of(module)["weight"]
    bias = module._parameters.get("bias")
    values = slot.piece()  # first: places may follow it from another device
    if is_learning(x, values, bias) or torch.is_autocast_enabled("cpu"):
        return None
    made_of = slot.places, values, bias
    of_bias = None if bias is None else (bias.data_ptr(), bias.dtype, bias.shape, bias.stride())
    case = x.shape, x.dtype, torch.get_num_threads(), of_bias
    known = slot.pack.ready.get(slot.number)
    if known is None or known.case != case or any(map(is_not, made_of, known.made_of)):
        if not _is_fit(module, slot, x, values, bias):
            return None
        assert isinstance(slot.places, PatternPlaces)
        known = slot.pack.ready[slot.number] = Ready(slot.places.pattern, made_of, case)
    y = x.new_empty(*x.shape[:-1], module.out_features)
    vector_forward(known.pattern, values, x, bias, y)
    return y


def _is_fit(module: nn.Linear, slot: Slot, x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can read all of these tensors, and is the way to go."""
    if len(expanders_of(module)) > 1 or way_of(slot, x, values, bias) != "sparse":
        return False
    if bias is None:
        return True
    is_plain = type(bias) in (Tensor, nn.Parameter) and bias.is_cpu and bias.is_contiguous() and not bias.is_neg()
    return is_plain and bias.shape == (module.out_features,)
