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
from regrow.kernels.cpu.threads import num_threads_for, run

_LANES, _CHUNK = 16, 16  # as in the kernels
_FORWARD_TILE, _BACKWARD_TILE = 64, 128  # samples side by side: a tile of sums in registers; long runs to sum over
_BLOCK_BYTES = 1 << 18  # half of what a core has in its second cache, mostly
_LINES_OF_BLOCK, _FEWEST_IN_BLOCK = 256, 32  # measured: with fewer lines or entries there is nothing to gain
_MOST_PLANS = 32
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


def _forward(pattern: Pattern, values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor) -> None:
    plan = forward_plan(pattern, len(batch), batch.dtype)
    room = batch.new_empty(plan.room)
    start("linear_forward", pattern, plan, batch, room, forward_pointers(values, batch, bias, y, room))


def _backward(pattern: Pattern, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor) -> None:
    kernel = "linear_values" if dx is None else "linear_both"
    plan = backward_plan(pattern, len(batch), batch.dtype)
    room = batch.new_empty(plan.room)
    start(kernel, pattern, plan, dy, room, backward_pointers(values, batch, dy, dx, gradient, room))


class Plan(NamedTuple):
    """How a pass goes for all batches of one size: in how many parts, how much work it is, and memory to do it in."""

    num_parts: int
    work: int
    room: int  # numbers
    padded: int  # samples with the padding
    tile: int
    known: "array[int]"  # what the kernels are told besides where the tensors are
    address: int  # of that


def start(kernel: str, pattern: Pattern, plan: Plan, batch: Tensor, room: Tensor, pointers: list[int]) -> None:
    """Run a pass by itself; several threads need the batch that they share in tiles before they begin."""
    if plan.num_parts > 1:
        _lay_out(plan, batch, room)
    run(kernel, room.dtype, pattern.rows.dtype, plan.num_parts, [plan.address, *pointers], plan.work)


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
    padded = _round_up(num_samples)
    work = pattern.num_entries * padded
    num_parts = _num_parts_of_rows(pattern, num_threads_for(work))
    num_laid = pattern.num_columns * (min(padded, _FORWARD_TILE) if num_parts == 1 else padded)
    block, at_once = _blocks(pattern.num_entries, pattern.num_rows, pattern.num_columns, _FORWARD_TILE, dtype)
    num_sums = num_parts * at_once * _FORWARD_TILE
    by_row = dtype.itemsize * num_laid
    sums = by_row + dtype.itemsize * pattern.num_entries
    cursors = sums + dtype.itemsize * num_sums
    reached = cursors + dtype.itemsize * num_parts * pattern.num_columns
    sizes = [pattern.num_rows, pattern.num_columns, num_samples, padded, _FORWARD_TILE]
    rooms = [by_row, sums, cursors, reached]
    known = array("q", [*pattern.by_row, *pattern.by_column, *sizes, block, at_once, *rooms])
    room = num_laid + pattern.num_entries + num_sums + num_parts * (pattern.num_columns + at_once)
    return Plan(num_parts, work, room, padded, _FORWARD_TILE, known, known.buffer_info()[0])


def forward_pointers(values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor, room: Tensor) -> list[int]:
    """Where a forward pass finds what it needs, and the y to fill."""
    own = 0 if bias is None else bias.data_ptr()
    return [values.data_ptr(), own, y.data_ptr(), room.data_ptr(), batch.data_ptr(), *batch.stride()]


@_remembered
def backward_plan(pattern: Pattern, num_samples: int, dtype: torch.dtype) -> Plan:
    padded = _round_up(num_samples)
    work = 2 * pattern.num_entries * padded
    num_threads = num_threads_for(work)
    num_parts = 4 * num_threads if num_threads > 1 else 1
    num_laid = pattern.num_rows * (min(padded, _BACKWARD_TILE) if num_parts == 1 else padded)
    block, at_once = _blocks(pattern.num_entries, pattern.num_columns, pattern.num_rows, _BACKWARD_TILE, dtype)
    num_both = num_parts * 2 * at_once * _BACKWARD_TILE
    here = dtype.itemsize * num_laid
    reached = here + dtype.itemsize * num_both
    sizes = [pattern.num_rows, pattern.num_columns, num_samples, padded, _BACKWARD_TILE]
    known = array("q", [*pattern.by_column, *sizes, block, at_once, here, reached])
    room = num_laid + num_both + num_parts * at_once
    return Plan(num_parts, work, room, padded, _BACKWARD_TILE, known, known.buffer_info()[0])


def backward_pointers(
    values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor, room: Tensor
) -> list[int]:
    """Likewise, with the dx to fill, if any, and the gradient to add to."""
    what = [values.data_ptr(), gradient.data_ptr(), batch.data_ptr(), *batch.stride()]
    return [*what, room.data_ptr(), 0 if dx is None else dx.data_ptr(), dy.data_ptr(), *dy.stride()]


def _blocks(num_entries: int, num_lines: int, length: int, tile: int, dtype: torch.dtype) -> tuple[int, int]:
    """How much of the other side a line of the matrix meets at a time, and how many lines meet it one after the other.

    What all lines read again and again should stay in the cache next to a core. Only where it would not, and lines have
    entries enough in each block, are there several.
    """
    block = _BLOCK_BYTES // (tile * dtype.itemsize)
    if length <= block or num_entries * block < _FEWEST_IN_BLOCK * num_lines * length:
        return max(length, 1), _CHUNK
    return block, _LINES_OF_BLOCK


def _round_up(num_samples: int) -> int:
    """How many samples there are with the padding."""
    return -(-num_samples // _LANES) * _LANES


def _lay_out(plan: Plan, batch: Tensor, room: Tensor) -> None:
    """Put a batch into tiles with samples side by side."""
    num_samples, num_channels = batch.shape
    work = 8 * plan.padded * num_channels
    num_chunks = max(1, min(4 * num_threads_for(work), num_channels // 64))
    num_parts = -(-plan.padded // plan.tile) * num_chunks
    where = [batch.data_ptr(), *batch.stride(), room.data_ptr()]
    args = [*where, num_channels, num_samples, plan.padded, plan.tile, num_chunks]
    run("lay_out", batch.dtype, torch.int32, num_parts, args, work)


def _num_parts_of_rows(pattern: Pattern, num_threads: int) -> int:
    """Every part searches all columns for its first row, which should be little beside its own entries."""
    if num_threads == 1:
        return 1
    return max(num_threads, min(4 * num_threads, pattern.num_entries // (32 * pattern.num_columns + 1)))
