"""A sparse linear layer and the normalisation of what it gives, with or without ReLU, on a CPU.

Both are done in one start of a kernel where one thread does them; several threads must meet in between.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.cpu.linear import backward_plan, backward_table, forward_plan, forward_table, start
from regrow.kernels.cpu.pattern import Pattern, bias_for
from regrow.kernels.cpu.tables import (
    BlockBackward,
    BlockForward,
    NormBackward,
    NormForward,
    NormPlan,
    Table,
    bits,
    filler,
    kept,
)
from regrow.kernels.cpu.threads import num_threads_for, run

_norm_forward, _norm_backward = filler(NormForward), filler(NormBackward)
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
    """A layer and its norm, made ready for batches of one size, and for as long as the norm stays where it is."""

    def __init__(self, pattern: Pattern, norm: Norm, num_samples: int, dtype: torch.dtype) -> None:
        self._pattern, self._norm = pattern, norm
        self._shape = num_samples, pattern.num_rows
        self._forth, self._back = (plan(pattern, num_samples, dtype) for plan in (forward_plan, backward_plan))
        self._work = _COST * num_samples * pattern.num_rows
        self._num_parts = min(num_threads_for(self._work), max(1, pattern.num_rows // 64))
        plan = NormPlan(
            num_samples=num_samples,
            num_channels=pattern.num_rows,
            epsilon=bits(norm.epsilon),
            momentum=bits(norm.momentum),
            floor=bits(0.0 if norm.relu else -torch.inf),
            weight=norm.weight.data_ptr(),
            bias=norm.bias.data_ptr(),
            running_mean=norm.mean.data_ptr(),
            running_variance=norm.variance.data_ptr(),
            num_batches=norm.num_batches.data_ptr(),
        )
        self._plan, self._address = kept(plan)

    def forward(self, values: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """(y, what the way back needs) of a batch [samples, channels]: what the norm got, then its own numbers."""
        plan = self._forth
        num_samples, num_channels = self._shape
        y, h = x.new_empty(num_samples, num_channels), x.new_empty(num_samples + _NUM_KEPT, num_channels)
        scratch, sums = self._scratch(plan.num_scratch, x)
        bias = bias_for(self._pattern, bias)
        layer = forward_table(plan, values, x, bias, h, scratch)
        own = _norm_forward(plan=self._address, h=h.data_ptr(), y=y.data_ptr(), sums=sums)
        if plan.num_parts == self._num_parts == 1:
            self._run("block_forward", x.dtype, 1, BlockForward(layer, own))
        else:
            start("linear_forward", self._pattern, plan, x, scratch, layer)
            self._run("norm_forward", x.dtype, self._num_parts, own)
        return y, h

    def backward(
        self, values: Tensor, x: Tensor, h: Tensor, dy: Tensor, needs_input: bool
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x (or None), the values, what the norm got, its weight and its bias."""
        plan, norm = self._back, self._norm
        if norm.bias.dtype != h.dtype or not norm.bias.is_cpu:
            raise RuntimeError("the norm was converted between a forward and its backward pass; run backward before")
        dy = dy.resolve_neg().contiguous()
        dx = x.new_empty(self._shape[0], self._pattern.num_columns) if needs_input else None
        gradient = torch.zeros_like(values)
        dh, dweight, dbias = torch.empty_like(dy), dy.new_empty(self._shape[1]), dy.new_empty(self._shape[1])
        scratch, sums = self._scratch(plan.num_scratch, x)
        layer = backward_table(plan, values, x, dh, dx, gradient, scratch)
        own = _norm_backward(
            plan=self._address,
            h=h.data_ptr(),
            dy=dy.data_ptr(),
            dh=dh.data_ptr(),
            dweight=dweight.data_ptr(),
            dbias=dbias.data_ptr(),
            bias=norm.bias.data_ptr(),
            sums=sums,
        )
        if plan.num_parts == self._num_parts == 1:
            self._run("block_backward", x.dtype, 1, BlockBackward(layer, own))
        else:
            self._run("norm_backward", x.dtype, self._num_parts, own)
            start("linear_backward", self._pattern, plan, dh, scratch, layer)
        return dx, gradient, dh, dweight, dbias

    def _scratch(self, size: int, x: Tensor) -> tuple[Tensor, int]:
        """Memory for a pass through the layer and, after it, where the sums of the norm go."""
        sums = size + size % 2
        scratch = x.new_empty(sums + _NUM_SUMS * self._shape[1])
        return scratch, scratch.data_ptr() + sums * scratch.element_size()

    def _run(self, kernel: str, dtype: torch.dtype, num_parts: int, table: Table) -> None:
        run(kernel, dtype, self._pattern.rows.dtype, num_parts, table, self._work)
