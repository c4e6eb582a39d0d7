"""Sparse layers that autograd can go through. Only inputs and values are kept for the way back, nothing dense."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regrow.kernels.cpu.conv import conv_backward, conv_forward
from regrow.kernels.cpu.densify import densify, values_at
from regrow.kernels.cpu.linear import linear_backward, linear_forward
from regrow.kernels.cpu.pattern import Pattern
from regrow.kernels.cpu.planes import Convolution

Way = Literal["sparse", "dense"]
_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def apply_linear(
    pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None = None, way: Way = "sparse"
) -> Tensor:
    """x W' + b, computed on the nonzeros of W or, as a dense one, on a matrix made for the purpose."""
    y: Tensor = _Layer.apply(values, x, bias, pattern, None, way)  # type: ignore[no-untyped-call]
    return y


def apply_conv(
    pattern: Pattern, values: Tensor, x: Tensor, layer: Convolution, bias: Tensor | None = None, way: Way = "sparse"
) -> Tensor:
    """The convolution of a batch of pictures, or of one picture, likewise."""
    is_batch = x.ndim == 2 + len(layer.kernel_size)
    batch = x if is_batch else x[None]
    y: Tensor = _Layer.apply(values, batch, bias, pattern, layer, way)  # type: ignore[no-untyped-call]
    return y if is_batch else y[0]


def forward(
    pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None, layer: Convolution | None, way: Way
) -> Tensor:
    """The output of a linear layer or, if `layer` says how, a convolution."""
    if way == "sparse":
        x = x.resolve_neg()  # imaginary parts of conjugates have their sign beside their memory
        if layer is None:
            return linear_forward(pattern, values, x, bias)
        return conv_forward(pattern, values, x, layer, bias)
    weight = densify(pattern, values)
    if layer is None:
        return F.linear(x, weight, bias)
    convolve = _CONVOLUTIONS[len(layer.kernel_size)]
    kernel = weight.view(pattern.num_rows, -1, *layer.kernel_size)
    return convolve(x, kernel, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, layer: Convolution | None, way: Way, needs_input: bool
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values)."""
    if way == "sparse":
        x, dy = x.resolve_neg(), dy.resolve_neg()
        if layer is None:
            return linear_backward(pattern, values, x, dy, needs_input)
        return conv_backward(pattern, values, x, dy, layer, needs_input)
    if layer is None:
        below, batch = dy.reshape(-1, pattern.num_rows), x.reshape(-1, pattern.num_columns)
        dx = dy @ densify(pattern, values) if needs_input else None
        return dx, values_at(pattern, below.t() @ batch)
    kernel = densify(pattern, values).view(pattern.num_rows, -1, *layer.kernel_size)
    none = [0] * len(layer.kernel_size)
    wanted = [needs_input, True, False]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, kernel, None, layer.stride, layer.padding, layer.dilation, False, none, layer.groups, wanted
    )
    return dx, values_at(pattern, dw.flatten(1))


def bias_gradient(dy: Tensor, layer: Convolution | None) -> Tensor:
    """Summed over all but the last dimension or, of a convolution, all but the channels."""
    return dy.reshape(-1, dy.shape[-1]).sum(0) if layer is None else dy.transpose(0, 1).flatten(1).sum(1)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        pattern: Pattern,
        layer: Convolution | None,
        way: Way,
    ) -> Tensor:
        ctx.save_for_backward(values, x)
        ctx.pattern, ctx.layer, ctx.way = pattern, layer, way
        return forward(pattern, values, x, bias, layer, way)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        values, x = ctx.saved_tensors
        needs_values, needs_input, needs_bias = ctx.needs_input_grad[:3]
        dx = gradient = db = None
        if needs_values or needs_input:
            dx, gradient = backward(ctx.pattern, values, x, dy, ctx.layer, ctx.way, needs_input)
        if needs_bias:
            db = bias_gradient(dy, ctx.layer)
        return gradient, dx, db, None, None, None
