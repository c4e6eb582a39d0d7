"""Linear and convolution layers whose weights are packed: nothing dense outlives a forward or a backward pass.

On a CPU a layer is computed on its values alone, by `regrow.kernels`, where that is faster. Otherwise its weight is
made dense just before it is used, and again in backward. In between autograd keeps the layer's input, and values that
exist anyway.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from regrow.core.names import clean, unwrap
from regrow.kernels.cpu.functions import (
    Way,
    bias_gradient,
    dense_forward,
    dense_input_gradient,
    dense_weight_gradient,
    sparse_backward,
    sparse_forward,
)
from regrow.kernels.cpu.pattern import KERNEL_DTYPES
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.computed_weights import Forward, expanders_of
from regrow.storage.packed.growth import gradient_tiles
from regrow.storage.packed.pack import Slot, Version
from regrow.storage.packed.places import PatternPlaces


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
    if x.shape[-1] != module.in_features:
        raise RuntimeError(f"the layer has {module.in_features} inputs, got a tensor of shape {tuple(x.shape)}")
    return _compute(module, x, None)


def convolution(module: _ConvNd, x: Tensor) -> Tensor:
    """The forward pass of nn.Conv1d, nn.Conv2d and nn.Conv3d."""
    is_single = x.ndim == len(module.kernel_size) + 1
    x = x.unsqueeze(0) if is_single else x
    if x.ndim != len(module.kernel_size) + 2 or x.shape[1] != module.in_channels:
        raise RuntimeError(f"the layer has {module.in_channels} input channels, got a tensor of shape {tuple(x.shape)}")
    x, padding = _pad(module, x)
    how = Convolution(module.kernel_size, module.stride, padding, module.dilation, module.groups)
    y = _compute(module, x, how)
    return y.squeeze(0) if is_single else y


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


def _compute(module: nn.Module, x: Tensor, how: Convolution | None) -> Tensor:
    slot: Slot = expanders_of(module)["weight"]
    x, values, bias = _cast(x, slot.values(), module.bias)
    y: Tensor = _Layer.apply(x, values, bias, slot, how, way_of(slot, x, values, bias, how))  # type: ignore[no-untyped-call]
    return y


def _cast(*tensors: Any) -> list[Any]:
    """Under autocast in its precision, as torch's own layers do."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


def way_of(slot: Slot, x: Tensor, values: Tensor, bias: Tensor | None, how: Convolution | None = None) -> Way:
    """Whether to compute on the values alone."""
    places, dtype = slot.places, x.dtype
    if not isinstance(places, PatternPlaces) or dtype not in KERNEL_DTYPES or x.device.type != "cpu":
        return "dense"
    if values.dtype != dtype or (bias is not None and bias.dtype != dtype):
        return "dense"
    return slot.pack.choices.way(places.pattern, x, how)


class _Layer(torch.autograd.Function):
    """A linear layer or, if `how` says so, a convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, slot: Slot, how: Convolution | None, way: Way
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.slot, ctx.how, ctx.way, ctx.version = slot, how, way, slot.version()
        if way == "sparse":
            return sparse_forward(_pattern(slot), values, x, bias, how)
        return dense_forward(slot.places.spread(values), x, bias, how)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _go_back_once(ctx, dy) if torch.is_grad_enabled() else _go_back(ctx, dy)


def _go_back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values = ctx.saved_tensors
    slot, how = ctx.slot, ctx.how
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    slot.check_version(ctx.version, needs_x)
    dx = dvalues = None
    if ctx.way == "sparse":
        if needs_x or needs_values:
            dx, dvalues = sparse_backward(_pattern(slot), values, x, dy, how, needs_x)
        if needs_values and slot.wanted:
            slot.look_for_growth(gradient_tiles(slot.layer, x, dy, how), ctx.version)
    else:
        if needs_x:
            dx = dense_input_gradient(slot.places.spread(values), x, dy, how)
        if needs_values:
            dvalues = _take(dense_weight_gradient(slot.layer.shape, x, dy, how), slot, ctx.version)
    return (
        dx,
        dvalues if needs_values else None,
        bias_gradient(dy, how) if needs_bias else None,
        None,
        None,
        None,
    )


# Its guard against a second differentiation costs as much as a small layer, so it is left out where none can follow.
_go_back_once = torch.autograd.function.once_differentiable(_go_back)


def _take(gradient: Tensor, slot: Slot, version: Version) -> Tensor:
    """What a dense gradient says of the values; and of free places, in a step that grows by it."""
    if slot.wanted:
        slot.look_for_growth([slot.layer.flatten(gradient)], version)
    return slot.places.collect(gradient)


def _pattern(slot: Slot) -> Any:
    assert isinstance(slot.places, PatternPlaces)
    return slot.places.pattern
