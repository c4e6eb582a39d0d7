"""The vector of values in pieces, one for each layer: how gradients of layers become the gradient of one parameter.

Pieces are made once and serve many passes. Nothing is saved for backward, so that one such graph can be run through it
any number of times, and the gradient of all is put together once in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Begun:
    """How many gradients of the values were begun, rather than added to one that was there; and who looks on."""

    number: int = 0
    sample: Any = None


@dataclass
class Stub:
    """What stands for a layer's piece in a graph that is compiled, of which parameter it is, and which layer's.

    Where a graph is to make the dense weight by itself: `index`, where values go in it, and `start`, of the first one.
    """

    tensor: Any = None
    of: Any = None
    where: Any = None
    index: Any = None
    start: Any = None

    def fits(self, values: Tensor) -> bool:
        """Whether its gradient goes to these values."""
        tensor = self.tensor
        if tensor is None or self.of is not values or tensor.requires_grad != values.requires_grad:
            return False
        return bool(tensor.dtype == values.dtype and tensor.device == values.device)

    def __getstate__(self) -> dict[str, Any]:
        """For copying and pickling: no leaf of autograd, and made anew."""
        return dict.fromkeys(self.__dict__)


def pieces(values: Tensor, sizes: list[int], begun: Begun) -> Sequence[Tensor]:
    """The pieces, which share the memory of the vector but not its version, since they outlive steps."""
    return _cut(values, sizes, begun, False)


def stand_ins(values: Tensor, sizes: list[int], begun: Begun) -> Sequence[Tensor]:
    """As long as the pieces, and 0 everywhere."""
    return of_any_length(_cut(values, sizes, begun, True), values)


def of_any_length(tensors: Sequence[Tensor], values: Tensor) -> Sequence[Tensor]:
    """Let a compiler take them for any length, so that it does not compile anew.

    Unless the values are frozen: then they hardly change in length, and the compiler need not be there.
    """
    if values.requires_grad:
        from torch._dynamo.decorators import mark_unbacked  # late, since it takes long to import

        for tensor in tensors:
            mark_unbacked(tensor, 0)
    return tensors


def _cut(values: Tensor, sizes: list[int], begun: Begun, are_empty: bool) -> Sequence[Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        made: Sequence[Tensor] = _Cut.apply(values, sizes, begun, are_empty)  # type: ignore[no-untyped-call]
    return made


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: list[int], begun: Begun, are_empty: bool) -> tuple[Tensor, ...]:
        ctx.values, ctx.begun = values, begun
        if are_empty:
            return tuple(values.new_zeros(1).as_strided((size,), (0,)) for size in sizes)
        return tuple(torch.split(values.data, sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        before = ctx.values.grad if ctx.values.is_leaf else None
        ctx.begun.number += ctx.values.is_leaf and before is None
        if ctx.begun.sample is not None:
            ctx.begun.sample.settle(before)
        return torch.cat(gradients), None, None, None
