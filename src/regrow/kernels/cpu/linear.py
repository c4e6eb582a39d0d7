"""Sparse linear layers on a CPU: y = x W' + b and its gradients, computed on the nonzeros of W alone.

Each entry of the results is computed by one thread in a fixed order: they are the same whatever the number of threads.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern, bias_for, check_fits
from regrow.kernels.cpu.tables import (
    BackwardPlan,
    ForwardPlan,
    LayOut,
    LinearBackward,
    LinearForward,
    Table,
    Tiles,
    VectorForward,
    filler,
    kept,
)
from regrow.kernels.cpu.threads import num_threads_for, run

_linear_forward, _linear_backward = filler(LinearForward), filler(LinearBackward)
_vector_forward = filler(VectorForward)
_LANES = 16  # as in the kernels
_FORWARD_TILE, _BACKWARD_TILE = 64, 128  # samples side by side: a tile of sums in registers; long runs to sum over
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 64, 16  # whose sums over a tile are in the first cache when they are turned
_BLOCK_BYTES = 1 << 18  # half of what a core has in its second cache, mostly
_LINES_OF_BLOCK, _FEWEST_IN_BLOCK = 256, 32  # measured: with fewer lines or entries there is nothing to gain
_MOST_PLANS = 32
_COST_ALONE = 6  # of an entry where there is one sample, in multiplications elsewhere
MOST_SAMPLES = 4096  # laid out at once, which bounds the memory that a call takes besides its results


def linear_forward(pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """y of shape [..., num_rows] for x of shape [..., num_columns]."""
    check_fits(pattern, values, x, bias)
    bias = bias_for(pattern, bias)
    batch = _samples(x, pattern.num_columns)
    y = batch.new_empty(batch.shape[0], pattern.num_rows)
    if pattern.num_rows:
        for part, result in zip(_portions(batch), _portions(y), strict=True):
            _forward(pattern, values, part, bias, result)
    return y if x.ndim == 2 else y.view(*x.shape[:-1], pattern.num_rows)


def linear_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    check_fits(pattern, values, x, dy)
    batch, below = _samples(x, pattern.num_columns), _samples(dy, pattern.num_rows)
    if len(batch) != len(below):
        raise ValueError(f"x has {len(batch)} samples and dy {len(below)}; they must be of the same batch")
    dx = batch.new_empty(batch.shape) if needs_input else None
    gradient = torch.zeros_like(values)
    if pattern.num_columns:
        portions = _portions(batch)
        results = repeat(None, len(portions)) if dx is None else _portions(dx)
        for part, part_below, result in zip(portions, _portions(below), results, strict=True):
            _backward(pattern, values, part, part_below, result, gradient)
    return dx if dx is None or x.ndim == 2 else dx.view(x.shape), gradient


def _samples(x: Tensor, num_channels: int) -> Tensor:
    """All leading dimensions as one."""
    if x.shape[-1] != num_channels:
        raise ValueError(f"this layer has {num_channels} features on that side, got a tensor of shape {tuple(x.shape)}")
    return x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), num_channels)


def _portions(batch: Tensor) -> Sequence[Tensor]:
    """As many samples as are laid out at once."""
    num_samples = batch.shape[0]
    if num_samples <= MOST_SAMPLES:
        return (batch,) if num_samples else ()
    return [batch[first : first + MOST_SAMPLES] for first in range(0, num_samples, MOST_SAMPLES)]


def vector_forward(pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """Fill y for one sample, whatever the leading dimensions; nobody looks again whether all of these tensors fit."""
    table = _vector_forward(
        pattern=pattern.address,
        values=values.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        y=y.data_ptr(),
        x=x.data_ptr(),
        step_channel=x.stride(-1),
    )
    work = _COST_ALONE * pattern.num_entries
    run("vector_forward", values.dtype, pattern.rows.dtype, num_threads_for(work), table, work)


def _forward(pattern: Pattern, values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor) -> None:
    if len(batch) == 1:
        return vector_forward(pattern, values, batch, bias, y)
    plan = forward_plan(pattern, len(batch), batch.dtype)
    scratch = batch.new_empty(plan.num_scratch)
    table = forward_table(plan, values, batch, bias, y, scratch)
    start("linear_forward", pattern, plan, batch, scratch, table)


def _backward(pattern: Pattern, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor) -> None:
    plan = backward_plan(pattern, len(batch), batch.dtype)
    scratch = batch.new_empty(plan.num_scratch)
    table = backward_table(plan, values, batch, dy, dx, gradient, scratch)
    start("linear_backward", pattern, plan, dy, scratch, table)


class Plan(NamedTuple):
    """How a pass goes for all batches of one size: in how many parts, how much work it is, and memory to do it in."""

    num_parts: int
    work: int
    num_scratch: int  # numbers
    num_padded: int  # samples with the padding
    tile: int
    known: "array[int]"  # the table of what the kernels are told besides where the tensors are
    address: int  # of that


def start(kernel: str, pattern: Pattern, plan: Plan, batch: Tensor, scratch: Tensor, table: Table) -> None:
    """Run a pass by itself; several threads need the batch that they share in tiles before they begin."""
    if plan.num_parts > 1:
        _lay_out(plan, batch, scratch)
    run(kernel, scratch.dtype, pattern.rows.dtype, plan.num_parts, table, plan.work)


def _remembered(make: Callable[[Pattern, int, torch.dtype], Plan]) -> Callable[[Pattern, int, torch.dtype], Plan]:
    """Work plans out once: most batches have the size of the last one."""

    def plan_for(pattern: Pattern, num_samples: int, dtype: torch.dtype) -> Plan:
        key = make, num_samples, dtype, torch.get_num_threads()
        plan: Plan | None = pattern.plans.get(key)
        if plan is None:
            if len(pattern.plans) >= _MOST_PLANS:
                pattern.plans.clear()
            plan = pattern.plans[key] = make(pattern, num_samples, dtype)
        return plan

    return plan_for


@_remembered
def forward_plan(pattern: Pattern, num_samples: int, dtype: torch.dtype) -> Plan:
    num_padded = _round_up(num_samples)
    work = pattern.num_entries * num_padded
    num_parts = _num_parts_of_rows(pattern, num_threads_for(work))
    num_laid = pattern.num_columns * (min(num_padded, _FORWARD_TILE) if num_parts == 1 else num_padded)
    columns_at_once, rows_at_once = _blocks(
        pattern.num_entries, (pattern.num_rows, _ROWS_AT_ONCE), pattern.num_columns, _FORWARD_TILE, dtype
    )
    num_sums = num_parts * rows_at_once * _FORWARD_TILE
    by_row_at = dtype.itemsize * num_laid
    sums_at = by_row_at + dtype.itemsize * pattern.num_entries
    cursors_at = sums_at + dtype.itemsize * num_sums
    known = ForwardPlan(
        pattern=pattern.table,
        tiles=Tiles(
            num_samples=num_samples,
            num_padded=num_padded,
            tile=_FORWARD_TILE,
            rows_at_once=rows_at_once,
            columns_at_once=columns_at_once,
        ),
        by_row_at=by_row_at,
        sums_at=sums_at,
        cursors_at=cursors_at,
        reached_at=cursors_at + dtype.itemsize * num_parts * pattern.num_columns,
    )
    num_scratch = num_laid + pattern.num_entries + num_sums + num_parts * (pattern.num_columns + rows_at_once)
    return Plan(num_parts, work, num_scratch, num_padded, _FORWARD_TILE, *kept(known))


def forward_table(
    plan: Plan, values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor, scratch: Tensor
) -> LinearForward:
    """Where a forward pass finds what it needs, and the y to fill."""
    step_sample, step_channel = batch.stride()
    return _linear_forward(
        plan=plan.address,
        values=values.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        y=y.data_ptr(),
        scratch=scratch.data_ptr(),
        x=batch.data_ptr(),
        step_sample=step_sample,
        step_channel=step_channel,
    )


@_remembered
def backward_plan(pattern: Pattern, num_samples: int, dtype: torch.dtype) -> Plan:
    num_padded = _round_up(num_samples)
    work = 2 * pattern.num_entries * num_padded
    num_threads = num_threads_for(work)
    num_parts = 4 * num_threads if num_threads > 1 else 1
    num_laid = pattern.num_rows * (min(num_padded, _BACKWARD_TILE) if num_parts == 1 else num_padded)
    rows_at_once, columns_at_once = _blocks(
        pattern.num_entries, (pattern.num_columns, _COLUMNS_AT_ONCE), pattern.num_rows, _BACKWARD_TILE, dtype
    )
    num_both = num_parts * 2 * columns_at_once * _BACKWARD_TILE
    own_at = dtype.itemsize * num_laid
    known = BackwardPlan(
        pattern=pattern.table,
        tiles=Tiles(
            num_samples=num_samples,
            num_padded=num_padded,
            tile=_BACKWARD_TILE,
            rows_at_once=rows_at_once,
            columns_at_once=columns_at_once,
        ),
        own_at=own_at,
        reached_at=own_at + dtype.itemsize * num_both,
    )
    num_scratch = num_laid + num_both + num_parts * columns_at_once
    return Plan(num_parts, work, num_scratch, num_padded, _BACKWARD_TILE, *kept(known))


def backward_table(
    plan: Plan, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor, scratch: Tensor
) -> LinearBackward:
    """Likewise, with the dx to fill, if any, and the gradient to add to."""
    step_sample, step_channel = batch.stride()
    step_below, step_row = dy.stride()
    return _linear_backward(
        plan=plan.address,
        values=values.data_ptr(),
        gradient=gradient.data_ptr(),
        x=batch.data_ptr(),
        step_sample=step_sample,
        step_channel=step_channel,
        scratch=scratch.data_ptr(),
        dx=0 if dx is None else dx.data_ptr(),
        dy=dy.data_ptr(),
        step_below=step_below,
        step_row=step_row,
    )


def _blocks(num_entries: int, lines: tuple[int, int], length: int, tile: int, dtype: torch.dtype) -> tuple[int, int]:
    """How much of the other side a line of the matrix meets at a time, and how many lines meet it one after the other.

    Of `lines` how many there are, and how many there usually are at once.

    What all lines read again and again should stay in the cache next to a core. Only where it would not, and lines have
    entries enough in each block, are there several.
    """
    block, (num_lines, at_once) = _BLOCK_BYTES // (tile * dtype.itemsize), lines
    if length <= block or num_entries * block < _FEWEST_IN_BLOCK * num_lines * length:
        return max(length, 1), at_once
    return block, _LINES_OF_BLOCK


def _round_up(num_samples: int) -> int:
    """How many samples there are with the padding."""
    return -(-num_samples // _LANES) * _LANES


def _lay_out(plan: Plan, batch: Tensor, scratch: Tensor) -> None:
    """Put a batch into tiles with samples side by side."""
    num_samples, num_channels = batch.shape
    step_sample, step_channel = batch.stride()
    work = 8 * plan.num_padded * num_channels
    num_chunks = max(1, min(4 * num_threads_for(work), num_channels // 64))
    table = LayOut(
        x=batch.data_ptr(),
        step_sample=step_sample,
        step_channel=step_channel,
        tiles=scratch.data_ptr(),
        num_channels=num_channels,
        num_samples=num_samples,
        num_padded=plan.num_padded,
        tile=plan.tile,
        num_chunks=num_chunks,
    )
    num_parts = -(-plan.num_padded // plan.tile) * num_chunks
    run("lay_out", batch.dtype, torch.int32, num_parts, table, work)


def _num_parts_of_rows(pattern: Pattern, num_threads: int) -> int:
    """Every part searches all columns for its first row, which should be little beside its own entries."""
    if num_threads == 1:
        return 1
    return max(num_threads, min(4 * num_threads, pattern.num_entries // (32 * pattern.num_columns + 1)))
