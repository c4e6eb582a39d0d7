"""A linear layer, its normalisation and ReLU as one: small layers spend more time between kernels than in them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regrow.kernels.cpu_linear import MOST_SAMPLES, backward_batch, forward_batch
from regrow.kernels.cpu_norm import norm_backward, norm_forward
from regrow.kernels.pattern import bias_for
from regrow.storage.expanding import expanders_of
from regrow.storage.growth import gradient_tiles
from regrow.storage.pack import Slot
from regrow.storage.packed_layers import forward_for, way_of
from regrow.storage.packed_layers import linear as packed_linear


def linear_norm(linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor, *, relu: bool = False) -> Tensor:
    """`norm(linear(x))`, with `relu` `relu(norm(linear(x)))`: for the forward pass of a model.

    Where a packed linear layer trains on a CPU, all three are one step of autograd. Otherwise they are what they say.
    """
    slot = expanders_of(linear).get("weight")
    if isinstance(slot, Slot) and not torch.compiler.is_compiling() and _are_one(slot, linear, norm, x):
        own, buffers = norm._parameters, norm._buffers
        means = buffers["running_mean"], buffers["running_var"]
        how = slot, means, norm.eps, norm.momentum, relu
        buffers["num_batches_tracked"].add_(1)  # type: ignore[union-attr]
        bias = linear._parameters["bias"]
        y: Tensor = _Block.apply(x, slot.values(), bias, own["weight"], own["bias"], how)  # type: ignore[no-untyped-call]
        return y
    y = norm(linear(x))
    return F.relu(y) if relu else y


def _are_one(slot: Slot, linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor) -> bool:
    """Whether nothing is asked of the layers but what the block does, on tensors that the kernels can read."""
    if type(norm) is not nn.BatchNorm1d or not norm.training or norm.momentum is None:
        return False
    if type(x) is not Tensor or x.ndim != 2 or x.shape[1] != linear.in_features or not 1 < x.shape[0] <= MOST_SAMPLES:
        return False
    own, buffers = norm._parameters, norm._buffers
    for tensor in (own["weight"], own["bias"], buffers["running_mean"], buffers["running_var"]):
        if tensor is None or tensor.dtype != x.dtype or tensor.device != x.device or not tensor.is_contiguous():
            return False
    if _has_hooks(linear) or _has_hooks(norm) or torch.is_autocast_enabled("cpu"):
        return False
    if forward_for(linear) is not packed_linear or "bias" not in linear._parameters:
        return False
    if linear.out_features != norm.num_features:
        return False
    return way_of(slot, x, slot.pack.values, linear._parameters["bias"]) == "sparse"


def _has_hooks(module: nn.Module) -> bool:
    own = module.__dict__
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"])


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, weight: Tensor, shift: Tensor, how: tuple[Any, ...]
    ) -> Tensor:
        ctx.slot, means, epsilon, momentum, ctx.relu = how
        ctx.version = ctx.slot.version()
        pattern = ctx.slot.places.pattern
        h = x.new_empty(x.shape[0], pattern.num_rows)
        forward_batch(pattern, values, x, bias_for(pattern, bias), h)
        y, kept = norm_forward(h, weight, shift, means, epsilon, momentum, ctx.relu)
        ctx.save_for_backward(x, values, shift, h, kept)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _go_back_once(ctx, dy) if torch.is_grad_enabled() else _go_back(ctx, dy)


def _go_back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values, shift, h, kept = ctx.saved_tensors
    slot: Slot = ctx.slot
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    slot.check_version(ctx.version, needs_x)
    dh, dweight, dshift = norm_backward(h, dy, shift, kept, ctx.relu)
    dx = dvalues = None
    if needs_x or needs_values:
        dx, dvalues = x.new_empty(x.shape) if needs_x else None, torch.zeros_like(values)
        backward_batch(ctx.slot.places.pattern, values, x, dh, dx, dvalues)
    if needs_values and slot.wanted:
        slot.look_for_growth(gradient_tiles(slot.layer, x, dh, None), ctx.version)
    dbias = dh.sum(0) if needs_bias else None
    return dx, dvalues if needs_values else None, dbias, dweight, dshift, None


_go_back_once = torch.autograd.function.once_differentiable(_go_back)
