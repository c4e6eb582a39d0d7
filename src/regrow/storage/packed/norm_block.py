"""A linear layer, its normalisation and ReLU as one: small layers spend more time between kernels than in them."""

from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from regrow.kernels.cpu.linear import MOST_SAMPLES
from regrow.kernels.cpu.norm import Block, Norm
from regrow.storage.computed_weights import check_not_traced, expanders_of
from regrow.storage.packed.compute import way_of
from regrow.storage.packed.gradients import Product
from regrow.storage.packed.layers import forward_for
from regrow.storage.packed.layers import linear as packed_linear
from regrow.storage.packed.slot import Slot

_NO_BLOCK = (), (), None


def linear_norm(linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor, *, relu: bool = False) -> Tensor:
    """`norm(linear(x))`, with `relu` `relu(norm(linear(x)))`: for the forward pass of a model.

    Where a packed linear layer trains on a CPU, all three are one step of autograd. Otherwise they are what they say.
    """
    slot = expanders_of(linear).get("weight")
    if isinstance(slot, Slot) and not torch.compiler.is_compiling() and _ask_no_more(linear, norm, x):
        check_not_traced(x)
        case = _case(slot, linear, norm)
        block = _block(slot, linear, norm, x, case, relu)
        if block is not None:
            slot.count_use()
            _, _, values, bias, weight, shift, *_ = case
            y: Tensor = _apply(x, values, bias, weight, shift, (slot, block))
            return y
    y = norm(linear(x))
    return F.relu(y) if relu else y


def _ask_no_more(linear: nn.Module, norm: nn.BatchNorm1d, x: Tensor) -> bool:
    """Whether nothing is asked of the layers but what the block does."""
    if type(norm) is not nn.BatchNorm1d or not norm.training or not norm.track_running_stats:
        return False
    if not isinstance(norm.momentum, (int, float)) or not isinstance(norm.eps, (int, float)):
        return False
    if type(x) is not Tensor or not x.is_cpu or x.is_neg():
        return False
    if _has_hooks(linear) or _has_hooks(norm) or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    return not (torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active())


def _has_hooks(module: nn.Module) -> bool:
    """Whether others take part in a module's passes, or have put another forward pass in the place of its own."""
    own = module.__dict__
    hooks = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    return bool(hooks or "forward" in own)


def _case(slot: Slot, linear: nn.Module, norm: nn.Module) -> tuple[Any, ...]:
    """All that a block is made of, but for the batch."""
    own, of_norm, of_batches = linear._parameters, norm._parameters, norm._buffers
    values = slot.piece()  # first: places may follow it from another device
    return (
        type(linear), slot.places, values, own.get("bias"), of_norm.get("weight"), of_norm.get("bias"),
        of_batches.get("running_mean"), of_batches.get("running_var"), of_batches.get("num_batches_tracked"),
    )  # fmt: skip


def _block(
    slot: Slot, linear: nn.Linear, norm: nn.BatchNorm1d, x: Tensor, case: tuple[Any, ...], relu: bool
) -> Block | None:
    """The layer and its norm as one, if the kernels can read all of these tensors.

    The last block is remembered with the layer: looking closer in every pass would cost as much as the kernels do. It
    serves as long as all that it is made of is the same, and in the same memory, which a converted tensor has not.
    """
    _, places, values, bias, weight, shift, mean, variance, num_batches = case
    if weight is None or shift is None or (bias is not None and (bias.dtype != x.dtype or not bias.is_cpu)):
        return None
    memory = [tensor.data_ptr() for tensor in case[4:] if tensor is not None]
    size = x.shape, x.dtype, torch.get_num_threads(), norm.eps, norm.momentum, relu, memory
    last: tuple[Any, Any, Block | None] = slot.pack.blocks.get(slot.number, _NO_BLOCK)
    known, known_size, block = last
    if block is None or known_size != size or any(map(is_not, case, known)):
        numbers = Norm(weight, shift, mean, variance, num_batches, norm.eps, norm.momentum or 0, relu)
        if not _can_be_one(slot, linear, x, values, bias, numbers):
            return None
        block = Block(places.pattern, numbers, len(x), x.dtype)
        slot.pack.blocks[slot.number] = case, size, block
    return block


def _can_be_one(slot: Slot, linear: nn.Linear, x: Tensor, values: Tensor, bias: Tensor | None, norm: Norm) -> bool:
    if (
        forward_for(linear, expanders_of(linear)) is not packed_linear
        or "bias" not in linear._parameters
        or len(expanders_of(linear)) > 1
    ):
        return False
    if x.ndim != 2 or x.shape[1] != linear.in_features or not 1 < x.shape[0] <= MOST_SAMPLES:
        return False
    for tensor in (norm.weight, norm.bias, norm.mean, norm.variance):
        if not _is_like(tensor, x, (linear.out_features,)):
            return False
    if norm.num_batches is None or norm.num_batches.dtype != torch.int64 or norm.num_batches.numel() != 1:
        return False
    if not norm.num_batches.is_cpu or not _is_like(values, x, values.shape):
        return False
    return way_of(slot, x, values, bias) == "sparse"


def _is_like(tensor: Tensor | None, x: Tensor, shape: tuple[int, ...]) -> bool:
    if tensor is None or tensor.shape != shape or not tensor.is_contiguous() or tensor.is_neg():
        return False
    return type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == x.dtype and tensor.device == x.device


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, _: Tensor, shift: Tensor, how: tuple[Slot, Block]
    ) -> Tensor:
        slot, block = how
        y, kept = block.forward(values, x, bias)
        ctx.save_for_backward(x, values, shift, kept)
        ctx.slot, ctx.block, ctx.version = slot, block, slot.version()
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _go_back_once(ctx, dy) if torch.is_grad_enabled() else _go_back(ctx, dy)


# Not by way of the one that torch.func needs, which packed layers do not go through.
_apply: Any = super(torch.autograd.Function, _Block).apply


def _go_back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values, _, kept = ctx.saved_tensors
    slot: Slot = ctx.slot
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    slot.check_version(ctx.version, needs_x)
    dx, dvalues, dh, dweight, dshift = ctx.block.backward(values, x, kept, dy, needs_x)
    if needs_values and slot.wanted:
        slot.look_for_growth(Product(slot.layer, x, dh, None), slot.use_of(ctx.version))
    dbias = dh.sum(0) if needs_bias else None
    return dx, dvalues if needs_values else None, dbias, dweight, dshift, None


_go_back_once = torch.autograd.function.once_differentiable(_go_back)
