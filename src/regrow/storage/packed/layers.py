"""Linear and convolution layers whose weights are packed: nothing dense outlives a forward or a backward pass.

On a CPU a layer is computed on its values alone, by `regrow.kernels`, where that is faster. Otherwise its weight is
made dense just before it is used, and again in backward. In between autograd keeps the layer's input, and values that
exist anyway.
"""

from collections.abc import Container
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from regrow.core.names import clean, unwrap
from regrow.kernels.cpu.functions import Way, bias_gradient
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.computed_weights import Forward, check_not_traced, expanders_of
from regrow.storage.packed import operators
from regrow.storage.packed.compute import Wanted, backward, forward, way_of
from regrow.storage.packed.ready import is_learning, on_one_sample
from regrow.storage.packed.slot import Slot


def packed_slots(model: nn.Module) -> dict[str, Slot]:
    """The packed weights of a model by the names their parameters would have, tied ones under each."""
    return {
        clean(f"{prefix}.{name}" if prefix else name): expander
        for prefix, module in unwrap(model).named_modules(remove_duplicate=False)
        for name, expander in expanders_of(module).items()
        if isinstance(expander, Slot)
    }


def forward_for(module: nn.Module, names: Container[str]) -> Forward | None:
    """How a module computes of which some parameters are packed; None if it is to read them like any other."""
    cls: Any = getattr(type(module), "_expands", (type(module),))[0]
    if cls.forward is nn.MultiheadAttention.forward:
        return attention
    if "weight" not in names:
        return None
    if cls.forward is nn.Linear.forward:
        return linear
    for conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        if cls.forward is conv.forward and cls._conv_forward is conv._conv_forward:
            return convolution
    return None


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    """The forward pass of nn.Linear."""
    check_not_traced(x)
    if x.shape[-1] != module.in_features:
        raise RuntimeError(f"the layer has {module.in_features} inputs, got a tensor of shape {tuple(x.shape)}")
    y = None if torch.compiler.is_compiling() else on_one_sample(module, x)
    return _compute(module, x, None) if y is None else y


def convolution(module: _ConvNd, x: Tensor) -> Tensor:
    """The forward pass of nn.Conv1d, nn.Conv2d and nn.Conv3d."""
    check_not_traced(x)
    is_single = x.ndim == len(module.kernel_size) + 1
    x = x.unsqueeze(0) if is_single else x
    if x.ndim != len(module.kernel_size) + 2 or x.shape[1] != module.in_channels:
        raise RuntimeError(f"the layer has {module.in_channels} input channels, got a tensor of shape {tuple(x.shape)}")
    x, padding = _pad(module, x)
    how = Convolution(module.kernel_size, module.stride, padding, module.dilation, module.groups)
    y = _compute(module, x, how)
    return y.squeeze(0) if is_single else y


def attention(module: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
    """The forward pass of nn.MultiheadAttention, which reads its weights again and again: here each is made once."""
    if torch.compiler.is_compiling():  # which makes only what is used
        return nn.MultiheadAttention.forward(module, *args, **kwargs)
    output = module.out_proj
    twin = nn.MultiheadAttention.__new__(nn.MultiheadAttention)
    twin.__dict__ |= module.__dict__
    twin.__dict__ |= {name: slot.expand(module._parameters[name]) for name, slot in expanders_of(module).items()}
    twin.__dict__["out_proj"] = SimpleNamespace(weight=output.weight, bias=output.bias)
    return nn.MultiheadAttention.forward(twin, *args, **kwargs)


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
    if torch.compiler.is_compiling():
        x, bias = _cast(x, module.bias)
        return operators.layer(slot, x, bias, how)
    x, values, bias = _cast(x, slot.values(), module.bias)
    way = way_of(slot, x, values, bias, how)
    if not is_learning(x, values, bias):
        return forward(slot, x, values, bias, how, way)
    y: Tensor = _Layer.apply(x, values, bias, slot, how, way)  # type: ignore[no-untyped-call]
    return y


def _cast(*tensors: Any) -> list[Any]:
    """Under autocast in its precision, as torch's own layers do."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


class _Layer(torch.autograd.Function):
    """A linear layer or, if `how` says so, a convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, slot: Slot, how: Convolution | None, way: Way
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.slot, ctx.how, ctx.way, ctx.version = slot, how, way, slot.version()
        return forward(slot, x, values, bias, how, way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _go_back_once(ctx, dy) if torch.is_grad_enabled() else _go_back(ctx, dy)


def _go_back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values = ctx.saved_tensors
    slot, how = ctx.slot, ctx.how
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    slot.check_version(ctx.version, needs_x)
    wanted = Wanted(needs_x, needs_values, slot.use_of(ctx.version))
    dx, dvalues = backward(slot, x, values, dy, how, ctx.way, wanted)
    return dx, dvalues, bias_gradient(dy, how) if needs_bias else None, None, None, None


# Its guard against a second differentiation costs as much as a small layer, so it is left out where none can follow.
_go_back_once = torch.autograd.function.once_differentiable(_go_back)
