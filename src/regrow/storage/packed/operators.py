"""Packed layers as a compiler sees them: operators that it calls as they are, and that tell it shapes alone.

Places change at rewirings, so they are no part of a graph: an operator is told by number which layer it computes, and
looks up when it runs where that layer's values belong. The values it gets whole, as the parameter they are. A layer's
stub stands for its share of them in autograd: as long as the share, which may be of any length without compiling anew,
it has no contents, and its gradient is that of the share.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from regrow.kernels.cpu.functions import bias_gradient, dense_forward
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.packed import in_graph
from regrow.storage.packed.compute import Wanted, backward, collect, forward, way_of

if TYPE_CHECKING:
    from regrow.storage.packed.pack import Pack
    from regrow.storage.packed.slot import Slot

_LIBRARY: Any = torch.library.Library("regrow", "FRAGMENT")  # type: ignore[no-untyped-call]
_PACKS: "WeakValueDictionary[int, Pack]" = WeakValueDictionary()
_numbers = count()
# A captured graph would go on with the places of the moment in which it was captured.
_TAGS = [tag for name in ("cudagraph_unsafe",) if (tag := getattr(torch.Tag, name, None)) is not None]


def make_known(pack: "Pack") -> int:
    """A number by which operators find a pack, as long as it lives."""
    number = next(_numbers)
    _PACKS[number] = pack
    return number


def _slot(where: Tensor, learns: bool = False) -> "Slot":
    """The layer that is meant, ready to be computed."""
    number, which = where.tolist()
    pack = _PACKS.get(number)
    if pack is None:
        raise RuntimeError("this graph was compiled for a packed model that is gone; compile the model that is here")
    pack.check_belongs()
    pack.follow()
    slot = pack.slot(which)
    if learns and slot.wanted:
        slot.search.num_uses += 1
    return slot


def _use(slot: "Slot") -> int:
    """Uses of a layer are gone back through from the last to the first, and one that has been is counted no more."""
    return max(1, slot.search.num_uses)


# A layer: `how` is the number of outputs, and for a convolution what it says of itself.


def layer(slot: "Slot", x: Tensor, bias: Tensor | None, how: Convolution | None) -> Tensor:
    """A packed layer, in the middle of being compiled."""
    values, stub, where = slot.for_compiler()
    if slot.stub.index is not None:
        return dense_forward(in_graph.weight(slot, values, x.dtype), x, bias, how)
    numbers = [slot.shape[0]] if how is None else [slot.shape[0], *_as_numbers(how)]
    y: Tensor = torch.ops.regrow.packed_layer(x, values, stub, bias, where, numbers, torch.is_grad_enabled())
    return y


def _as_numbers(how: Convolution) -> list[int]:
    return [*how.kernel_size, *how.stride, *how.padding, *how.dilation, how.groups]


def _convolution(how: Sequence[int]) -> Convolution | None:
    if len(how) == 1:
        return None
    num_dims = (len(how) - 2) // 4
    kernel_size, stride, padding, dilation = (tuple(how[1 + i * num_dims :][:num_dims]) for i in range(4))
    return Convolution(kernel_size, stride, padding, dilation, how[-1])


def _layer(
    x: Tensor,
    values: Tensor,
    stub: Tensor,
    bias: Tensor | None,
    where: Tensor,
    how: Sequence[int],
    learns: bool,
) -> Tensor:
    slot, convolution = _slot(where, learns), _convolution(how)
    own = slot.share(values).to(x.dtype)
    y = forward(slot, x, own, bias, convolution, way_of(slot, x, own, bias, convolution))
    return _as(x, y)


def _fake_layer(
    x: Tensor,
    values: Tensor,
    stub: Tensor,
    bias: Tensor | None,
    where: Tensor,
    how: Sequence[int],
    learns: bool,
) -> Tensor:
    convolution = _convolution(how)
    if convolution is None:
        return x.new_empty(*x.shape[:-1], how[0])
    size = convolution.output_size(tuple(x.shape[2:]))
    return torch.empty(len(x), how[0], *size, dtype=x.dtype, device=x.device, memory_format=_format(x))


def _layer_backward(
    dy: Tensor,
    x: Tensor,
    values: Tensor,
    size: int,
    where: Tensor,
    how: Sequence[int],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    slot, convolution = _slot(where), _convolution(how)
    own = slot.share(values).to(x.dtype)
    wanted = Wanted(needs[0], needs[1], _use(slot))
    dx, dvalues = backward(slot, x, own, dy, convolution, way_of(slot, x, own, None, convolution), wanted)
    nothing = values.new_empty(0)
    return (
        x.new_empty(0) if dx is None else _as(x, dx),
        nothing if dvalues is None else dvalues.to(values.dtype),
    )


def _fake_layer_backward(
    dy: Tensor,
    x: Tensor,
    values: Tensor,
    size: int,
    where: Tensor,
    how: Sequence[int],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=_format(x)) if needs[0] else x.new_empty(0)
    return dx, values.new_empty(size if needs[1] else 0)


def _as(x: Tensor, y: Tensor) -> Tensor:
    """A result as the compiler was told it would be; autocast, if it is on in a backward pass, makes another of it."""
    return y.to(x.dtype).contiguous(memory_format=_format(x))


def _format(x: Tensor) -> torch.memory_format:
    """How results lie in memory: as the input does, so that this is known without computing them."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    found = formats.get(x.ndim)
    is_usual = found is None or x.is_contiguous() or not x.is_contiguous(memory_format=found)
    return torch.contiguous_format if is_usual or found is None else found


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, stub, _, where, ctx.how, _ = inputs
    ctx.save_for_backward(x, values, where)
    ctx.size = stub.shape[0]


def _layer_gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, values, where = ctx.saved_tensors
    needs_x, _, needs_values, needs_bias, *_ = ctx.needs_input_grad
    dx = dvalues = None
    if needs_x or needs_values:
        dx, dvalues = torch.ops.regrow.packed_layer_backward(
            dy, x, values, ctx.size, where, ctx.how, [needs_x, needs_values]
        )
    dbias = bias_gradient(dy, _convolution(ctx.how)) if needs_bias else None
    return dx if needs_x else None, None, dvalues if needs_values else None, dbias, None, None, None


# A weight that somebody reads, dense.


def weight(slot: "Slot") -> Tensor:
    """A packed layer's weight, in the middle of being compiled."""
    values, stub, where = slot.for_compiler()
    if slot.stub.index is not None:
        return in_graph.weight(slot, values, values.dtype)
    dense: Tensor = torch.ops.regrow.packed_weight(values, stub, where, slot.shape, torch.is_grad_enabled())
    return dense


def _weight(values: Tensor, stub: Tensor, where: Tensor, shape: Sequence[int], learns: bool) -> Tensor:
    slot = _slot(where, learns)
    return slot.places.spread(slot.share(values)).contiguous()


def _fake_weight(values: Tensor, stub: Tensor, where: Tensor, shape: Sequence[int], learns: bool) -> Tensor:
    return values.new_empty(shape)


def _weight_backward(gradient: Tensor, size: int, where: Tensor) -> Tensor:
    slot = _slot(where)
    return collect(slot, gradient, _use(slot)).to(gradient.dtype)


def _fake_weight_backward(gradient: Tensor, size: int, where: Tensor) -> Tensor:
    return gradient.new_empty(size)


def _remember_size(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, stub, where, *_ = inputs
    ctx.save_for_backward(values, where)  # values, for autograd to notice if they change
    ctx.size = stub.shape[0]


def _weight_gradients(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    _, where = ctx.saved_tensors
    return None, torch.ops.regrow.packed_weight_backward(gradient, ctx.size, where), None, None, None


def _define(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _LIBRARY.define(f"{name}{schema}", tags=_TAGS)
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"regrow::{name}", fake, lib=_LIBRARY)


_define(
    "packed_layer",
    "(Tensor x, Tensor values, Tensor stub, Tensor? bias, Tensor where, SymInt[] how, bool learns) -> Tensor",
    _layer,
    _fake_layer,
)
_define(
    "packed_layer_backward",
    "(Tensor dy, Tensor x, Tensor values, SymInt size, Tensor where, SymInt[] how, bool[] needs) -> (Tensor, Tensor)",
    _layer_backward,
    _fake_layer_backward,
)
_define(
    "packed_weight",
    "(Tensor values, Tensor stub, Tensor where, SymInt[] shape, bool learns) -> Tensor",
    _weight,
    _fake_weight,
)
_define(
    "packed_weight_backward",
    "(Tensor gradient, SymInt size, Tensor where) -> Tensor",
    _weight_backward,
    _fake_weight_backward,
)
torch.library.register_autograd("regrow::packed_layer", _layer_gradients, setup_context=_remember, lib=_LIBRARY)
torch.library.register_autograd("regrow::packed_weight", _weight_gradients, setup_context=_remember_size, lib=_LIBRARY)
