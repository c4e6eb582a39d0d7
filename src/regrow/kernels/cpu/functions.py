"""Both ways to compute a linear layer or, if `how` says so, a convolution: on its values alone, or as a dense one."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regrow.kernels.cpu.conv import conv_backward, conv_forward
from regrow.kernels.cpu.linear import linear_backward, linear_forward
from regrow.kernels.cpu.pattern import Pattern
from regrow.kernels.cpu.planes import Convolution

Way = Literal["sparse", "dense"]


def sparse_forward(pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None, how: Convolution | None) -> Tensor:
    """The output, on a CPU."""
    x = x.resolve_neg()  # imaginary parts of conjugates have their sign beside their memory
    if how is None:
        return linear_forward(pattern, values, x, bias)
    return conv_forward(pattern, values, x, how, bias)


def sparse_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, how: Convolution | None, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values)."""
    x, dy = x.resolve_neg(), dy.resolve_neg()
    if how is None:
        return linear_backward(pattern, values, x, dy, needs_input)
    return conv_backward(pattern, values, x, dy, how, needs_input)


def dense_forward(weight: Tensor, x: Tensor, bias: Tensor | None, how: Convolution | None) -> Tensor:
    """The output, on any device, with a weight that need not outlive the call."""
    if how is None:
        return F.linear(x, weight, bias)
    return torch.convolution(x, weight, bias, *_settings(how))


def dense_input_gradient(weight: Tensor, x: Tensor, dy: Tensor, how: Convolution | None) -> Tensor:
    """dx; apart from the weight's gradient, so that there is only one of the two at a time."""
    return dy @ weight if how is None else _convolution_backward(weight, x, dy, how, (True, False, False))[0]


def dense_weight_gradient(shape: tuple[int, ...], x: Tensor, dy: Tensor, how: Convolution | None) -> Tensor:
    """The gradient of a weight of which only the shape is needed."""
    if how is None:
        return dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
    no_memory = x.new_empty(1).expand(shape)
    return _convolution_backward(no_memory, x, dy, how, (False, True, False))[1]


def bias_gradient(dy: Tensor, how: Convolution | None) -> Tensor:
    """Summed over all but the last dimension or, of a convolution, all but the channels."""
    return dy.reshape(-1, dy.shape[-1]).sum(0) if how is None else dy.transpose(0, 1).flatten(1).sum(1)


def _convolution_backward(
    weight: Tensor, x: Tensor, dy: Tensor, how: Convolution, needed: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        dy, x, weight, None, *_settings(how), needed
    )
    return found


def _settings(how: Convolution) -> tuple[Any, ...]:
    """A convolution as torch wants to be told, which could also be a transposed one."""
    return how.stride, how.padding, how.dilation, False, (0,) * len(how.stride), how.groups
