"""Linear and convolution layers whose weights are packed: nothing dense outlives a forward or a backward pass.

A layer's weight is made dense just before it is used, and again in backward; in between autograd keeps the layer's
input, and values that exist anyway.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from regrow.names import clean, unwrap
from regrow.storage.expanding import Forward, expanders_of
from regrow.storage.pack import Slot


def packed_slots(model: nn.Module) -> dict[str, Slot]:
    """The packed weights of a model by the names their parameters would have, tied ones under each."""
    return {
        clean(f"{prefix}.{name}" if prefix else name): expander
        for prefix, module in unwrap(model).named_modules(remove_duplicate=False)
        for name, expander in expanders_of(module).items()
        if isinstance(expander, Slot)
    }


def forward_for(module: nn.Module) -> Forward | None:
    """How a module computes without its dense weight; None if it is to read it like any other."""
    cls: Any = getattr(type(module), "_expands", (type(module),))[0]
    if cls.forward is nn.Linear.forward:
        return linear
    for conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        if cls.forward is conv.forward and cls._conv_forward is conv._conv_forward:
            return convolution
    return None


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    """The forward pass of nn.Linear."""
    slot: Slot = expanders_of(module)["weight"]
    y: Tensor = _Linear.apply(*_cast(x, slot.values(), module.bias), slot)  # type: ignore[no-untyped-call]
    return y


def convolution(module: _ConvNd, x: Tensor) -> Tensor:
    """The forward pass of nn.Conv1d, nn.Conv2d and nn.Conv3d."""
    slot: Slot = expanders_of(module)["weight"]
    is_single = x.ndim == len(module.kernel_size) + 1
    x, padding = _pad(module, x.unsqueeze(0) if is_single else x)
    settings = _Settings(module.stride, padding, module.dilation, module.groups)
    y: Tensor = _Convolution.apply(*_cast(x, slot.values(), module.bias), slot, settings)  # type: ignore[no-untyped-call]
    return y.squeeze(0) if is_single else y


@dataclass(frozen=True)
class _Settings:
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _pad(module: _ConvNd, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded where the convolution itself cannot do it, and the padding left to it."""
    nothing = (0,) * len(module.kernel_size)
    if module.padding_mode != "zeros":
        return F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode), nothing
    if not isinstance(module.padding, str):
        return x, module.padding
    around = module._reversed_padding_repeated_twice[::-1]
    if around[0::2] == around[1::2]:
        return x, tuple(around[0::2])
    return F.pad(x, module._reversed_padding_repeated_twice), nothing


def _cast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Under autocast in its precision, as torch's own layers do."""
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, slot: Slot) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.slot, ctx.version = slot, slot.version
        return F.linear(x, slot.places.spread(values), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        slot: Slot = ctx.slot
        slot.check_version(ctx.version)
        needs_x, needs_values, needs_bias, _ = ctx.needs_input_grad
        dx = dvalues = None
        if needs_x:
            dx = dy @ slot.places.spread(values)
        dy = dy.reshape(-1, dy.shape[-1])
        if needs_values:
            gradient = dy.T @ x.reshape(-1, x.shape[-1])
            dvalues = _take(gradient, slot)
        return dx, dvalues, dy.sum(0) if needs_bias else None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, slot: Slot, how: _Settings) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.slot, ctx.version, ctx.how = slot, slot.version, how
        weight = slot.places.spread(values)
        none = (0,) * len(how.stride)
        return torch.convolution(x, weight, bias, how.stride, how.padding, how.dilation, False, none, how.groups)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        slot: Slot = ctx.slot
        slot.check_version(ctx.version)
        how: _Settings = ctx.how
        needed = ctx.needs_input_grad[:3]
        none = (0,) * len(how.stride)
        dx, gradient, dbias = torch.ops.aten.convolution_backward(
            dy, x, slot.places.spread(values), [dy.shape[1]] if needed[2] else None,
            how.stride, how.padding, how.dilation, False, none, how.groups, needed,
        )  # fmt: skip
        return dx, _take(gradient, slot) if needed[1] else None, dbias, None, None


def _take(gradient: Tensor, slot: Slot) -> Tensor:
    """What a dense gradient says of the values; and of free places, in a step that grows by it."""
    if slot.wanted:
        slot.look_for_growth(gradient)
    return slot.places.collect(gradient)
