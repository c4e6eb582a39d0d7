"""A sparse linear layer and the normalisation of what it gives, with or without ReLU, on a CPU.

Both are done in one start of a kernel where one thread does them; several threads must meet in between.
"""

from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.cpu.linear import backward_plan, backward_pointers, forward_plan, forward_pointers, start
from regrow.kernels.cpu.pattern import Pattern, bias_for
from regrow.kernels.cpu.threads import num_threads_for, run

_COST = 8  # of a number here, in multiplications elsewhere
_NUM_KEPT = 4  # numbers of each channel: mean, 1 / deviation, factor, and room for a sum
_NUM_SUMS = 6  # of each channel, in room for numbers of four bytes: two in double precision and two others


class Norm(NamedTuple):
    """Weight and bias; running mean and variance, which move on, and number of batches, which becomes one more."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    num_batches: Tensor
    epsilon: float
    momentum: float
    relu: bool


class Block:
    """A layer and its norm, made ready for batches of one size."""

    def __init__(self, pattern: Pattern, norm: Norm, num_samples: int, dtype: torch.dtype) -> None:
        self._pattern, self._norm = pattern, norm
        self._shape = num_samples, pattern.num_rows
        self._forth, self._back = (plan(pattern, num_samples, dtype) for plan in (forward_plan, backward_plan))
        self._work = _COST * num_samples * pattern.num_rows
        self._num_parts = min(num_threads_for(self._work), max(1, pattern.num_rows // 64))
        self._settings = array("d", [norm.epsilon, norm.momentum, 0.0 if norm.relu else -torch.inf])
        self._known = array("q", [*self._shape, self._settings.buffer_info()[0]])
        self._address = self._known.buffer_info()[0]

    def forward(self, values: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """(y, what the way back needs) of a batch [samples, channels]: what the norm got, then its own numbers."""
        plan, norm = self._forth, self._norm
        num_samples, num_channels = self._shape
        y, kept = x.new_empty(num_samples, num_channels), x.new_empty(num_samples + _NUM_KEPT, num_channels)
        room, sums = self._room(plan.room, x)
        bias = bias_for(self._pattern, bias)
        layer = forward_pointers(values, x, bias, kept, room)
        own = [
            self._address, kept.data_ptr(), y.data_ptr(), norm.weight.data_ptr(), norm.bias.data_ptr(),
            norm.mean.data_ptr(), norm.variance.data_ptr(), norm.num_batches.data_ptr(), sums,
        ]  # fmt: skip
        if plan.num_parts == self._num_parts == 1:
            self._run("block_forward", x.dtype, 1, _one_after_the_other([plan.address, *layer], own))
        else:
            start("linear_forward", self._pattern, plan, x, room, layer)
            self._run("norm_forward", x.dtype, self._num_parts, own)
        return y, kept

    def backward(
        self, values: Tensor, x: Tensor, kept: Tensor, dy: Tensor, needs_input: bool
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x (or None), the values, what the norm got, its weight and its bias."""
        plan, norm = self._back, self._norm
        if norm.bias.dtype != kept.dtype or not norm.bias.is_cpu:
            raise RuntimeError("the norm was converted between a forward and its backward pass; run backward before")
        dy = dy.resolve_neg().contiguous()
        dx = x.new_empty(self._shape[0], self._pattern.num_columns) if needs_input else None
        gradient = torch.zeros_like(values)
        dh, dweight, dbias = torch.empty_like(dy), dy.new_empty(self._shape[1]), dy.new_empty(self._shape[1])
        room, sums = self._room(plan.room, x)
        layer = backward_pointers(values, x, dh, dx, gradient, room)
        own = [
            self._address, kept.data_ptr(), dy.data_ptr(), dh.data_ptr(), dweight.data_ptr(),
            dbias.data_ptr(), norm.bias.data_ptr(), sums,
        ]  # fmt: skip
        kind = "values" if dx is None else "both"
        if plan.num_parts == self._num_parts == 1:
            self._run(f"block_{kind}", x.dtype, 1, _one_after_the_other([plan.address, *layer], own))
        else:
            self._run("norm_backward", x.dtype, self._num_parts, own)
            start(f"linear_{kind}", self._pattern, plan, dh, room, layer)
        return dx, gradient, dh, dweight, dbias

    def _room(self, size: int, x: Tensor) -> tuple[Tensor, int]:
        """Memory for a pass through the layer and, after it, where the sums of the norm go."""
        sums = size + size % 2
        room = x.new_empty(sums + _NUM_SUMS * self._shape[1])
        return room, room.data_ptr() + sums * room.element_size()

    def _run(self, kernel: str, dtype: torch.dtype, num_parts: int, args: list[int]) -> None:
        run(kernel, dtype, self._pattern.rows.dtype, num_parts, args, self._work)


def _one_after_the_other(first: list[int], second: list[int]) -> list[int]:
    """Two jobs of one part each as the arguments of one, which begin with where the second job is."""
    return [len(first) + 5, 0, 1, *first, 0, 1, *second]
