"""A linear layer, its normalisation and ReLU as one: small layers spend more time between kernels than in them."""

from operator import is_not
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regrow.kernels.cpu_linear import MOST_SAMPLES
from regrow.kernels.cpu_norm import Norm, block_backward, block_forward
from regrow.kernels.pattern import bias_for
from regrow.storage.expanding import expanders_of
from regrow.storage.growth import gradient_tiles
from regrow.storage.pack import Slot
from regrow.storage.packed_layers import forward_for, way_of
from regrow.storage.packed_layers import linear as packed_linear

# The last case of each norm that was found to be one with its layer. Looking closer in every pass would cost as much as
# the kernels do; tensors and places are replaced, not edited, where anything changes that matters here.
_found_one: "WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], tuple[Any, ...]]]" = WeakKeyDictionary()


def linear_norm(linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor, *, relu: bool = False) -> Tensor:
    """`norm(linear(x))`, with `relu` `relu(norm(linear(x)))`: for the forward pass of a model.

    Where a packed linear layer trains on a CPU, all three are one step of autograd. Otherwise they are what they say.
    """
    slot = expanders_of(linear).get("weight")
    if isinstance(slot, Slot) and not torch.compiler.is_compiling() and _are_one(slot, linear, norm, x):
        what = _norm(norm, relu)
        y: Tensor = _apply(x, slot.values(), linear._parameters["bias"], what.weight, what.bias, slot, what)
        return y
    y = norm(linear(x))
    return F.relu(y) if relu else y


def _norm(norm: Any, relu: bool) -> Norm:
    own, of_batches = norm._parameters, norm._buffers
    running = of_batches["running_mean"], of_batches["running_var"], of_batches["num_batches_tracked"]
    return Norm(own["weight"], own["bias"], *running, norm.eps, norm.momentum, relu)


def _are_one(slot: Slot, linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor) -> bool:
    """Whether nothing is asked of the layers but what the block does, on tensors that the kernels can read."""
    if not norm.training or _has_hooks(linear) or _has_hooks(norm) or torch.is_autocast_enabled("cpu"):
        return False
    if type(x) is not Tensor or not x.is_cpu:
        return False
    case = linear, slot.places, norm._buffers["running_mean"], norm._parameters["weight"], norm.momentum
    size = x.shape, x.dtype, torch.get_num_threads()
    known, known_size = _found_one.get(norm, (None, None))
    if known is None or known_size != size or any(map(is_not, case, known)):
        if not _can_be_one(slot, linear, norm, x):
            return False
        _found_one[norm] = case, size
    return True


def _can_be_one(slot: Slot, linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor) -> bool:
    if type(norm) is not nn.BatchNorm1d or norm.momentum is None or linear.out_features != norm.num_features:
        return False
    if forward_for(linear) is not packed_linear or "bias" not in linear._parameters:
        return False
    if x.ndim != 2 or x.shape[1] != linear.in_features or not 1 < x.shape[0] <= MOST_SAMPLES:
        return False
    own, buffers = norm._parameters, norm._buffers
    for tensor in (own["weight"], own["bias"], buffers["running_mean"], buffers["running_var"]):
        if tensor is None or tensor.dtype != x.dtype or tensor.device != x.device or not tensor.is_contiguous():
            return False
    return way_of(slot, x, slot.pack.values, linear._parameters["bias"]) == "sparse"


def _has_hooks(module: nn.Module) -> bool:
    own = module.__dict__
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"])


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, weight: Tensor, shift: Tensor, slot: Slot, norm: Norm
    ) -> Tensor:
        pattern: Any = slot.places.pattern  # type: ignore[attr-defined]
        y, h, kept = block_forward(pattern, values, x, bias_for(pattern, bias), norm)
        ctx.save_for_backward(x, values, shift, h, kept)
        ctx.slot, ctx.norm, ctx.version = slot, norm, slot.version()
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _go_back_once(ctx, dy) if torch.is_grad_enabled() else _go_back(ctx, dy)


# Not by way of the one that torch.func needs, which packed layers do not go through.
_apply: Any = super(torch.autograd.Function, _Block).apply


def _go_back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values, _, h, kept = ctx.saved_tensors
    slot: Slot = ctx.slot
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    slot.check_version(ctx.version, needs_x)
    pattern: Any = slot.places.pattern  # type: ignore[attr-defined]
    dx, dvalues, dh, dweight, dshift = block_backward(pattern, values, x, h, kept, dy, ctx.norm, needs_x)
    if needs_values and slot.wanted:
        slot.look_for_growth(gradient_tiles(slot.layer, x, dh, None), ctx.version)
    dbias = dh.sum(0) if needs_bias else None
    return dx, dvalues if needs_values else None, dbias, dweight, dshift, None, None


_go_back_once = torch.autograd.function.once_differentiable(_go_back)
