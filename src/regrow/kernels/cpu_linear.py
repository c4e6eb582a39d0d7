"""Sparse linear layers on a CPU: y = x W' + b and its gradients, computed on the nonzeros of W alone.

Each entry of the results is computed by one thread in a fixed order: they are the same whatever the number of threads.
"""

from collections.abc import Sequence
from itertools import repeat
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.pattern import Pattern, bias_for, check_fits
from regrow.kernels.team import num_threads_for, run

_LANES, _CHUNK = 16, 16  # as in the kernels
_FORWARD_TILE, _BACKWARD_TILE = 64, 128  # samples side by side: a tile of sums in registers; long runs to sum over
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
    start("linear_forward", pattern, forward_job(pattern, values, batch, bias, y))


def _backward(pattern: Pattern, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor) -> None:
    kernel = "linear_values" if dx is None else "linear_both"
    start(kernel, pattern, backward_job(pattern, values, batch, dy, dx, gradient))


class Job(NamedTuple):
    """What `run` wants to know, the memory to do it in, and what several threads need in tiles before they begin."""

    args: list[int]
    num_parts: int
    work: int
    room: Tensor
    batch: Tensor
    padded: int
    tile: int


def start(kernel: str, pattern: Pattern, job: Job) -> None:
    """Run a job by itself."""
    if job.num_parts > 1:
        _lay_out(job)
    run(kernel, job.room.dtype, pattern.rows.dtype, job.num_parts, job.args, job.work)


def forward_job(pattern: Pattern, values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor) -> Job:
    """Fill y, of tensors that fit."""
    num_samples = batch.shape[0]
    padded = _round_up(num_samples)
    work = pattern.num_entries * padded
    num_parts = _num_parts_of_rows(pattern, num_threads_for(work))
    num_laid = pattern.num_columns * (min(padded, _FORWARD_TILE) if num_parts == 1 else padded)
    num_sums = num_parts * _CHUNK * _FORWARD_TILE
    room = batch.new_empty(num_laid + pattern.num_entries + num_sums + num_parts * pattern.num_columns)
    tiles, size = room.data_ptr(), room.element_size()
    by_row = tiles + size * num_laid
    sums = by_row + size * pattern.num_entries
    args = [
        *pattern.by_row, *pattern.by_column, pattern.num_rows, pattern.num_columns,
        values.data_ptr(), by_row, tiles, 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        num_samples, padded, _FORWARD_TILE, sums + size * num_sums, sums,
        batch.data_ptr(), *batch.stride(),
    ]  # fmt: skip
    return Job(args, num_parts, work, room, batch, padded, _FORWARD_TILE)


def backward_job(
    pattern: Pattern, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor
) -> Job:
    """Fill dx if given and add to the gradient, likewise."""
    num_samples = batch.shape[0]
    padded = _round_up(num_samples)
    work = 2 * pattern.num_entries * padded
    num_threads = num_threads_for(work)
    num_parts = 4 * num_threads if num_threads > 1 else 1
    num_laid = pattern.num_rows * (min(padded, _BACKWARD_TILE) if num_parts == 1 else padded)
    room = batch.new_empty(num_laid + num_parts * 2 * _CHUNK * _BACKWARD_TILE)
    tiles = room.data_ptr()
    args = [
        *pattern.by_column, pattern.num_rows, pattern.num_columns, values.data_ptr(), gradient.data_ptr(),
        batch.data_ptr(), *batch.stride(), tiles, 0 if dx is None else dx.data_ptr(),
        num_samples, padded, _BACKWARD_TILE, tiles + room.element_size() * num_laid,
        dy.data_ptr(), *dy.stride(),
    ]  # fmt: skip
    return Job(args, num_parts, work, room, dy, padded, _BACKWARD_TILE)


def _round_up(num_samples: int) -> int:
    """How many samples there are with the padding."""
    return -(-num_samples // _LANES) * _LANES


def _lay_out(job: Job) -> None:
    """Put a batch into tiles with samples side by side."""
    num_samples, num_channels = job.batch.shape
    work = 8 * job.padded * num_channels
    num_chunks = max(1, min(4 * num_threads_for(work), num_channels // 64))
    num_parts = -(-job.padded // job.tile) * num_chunks
    where = [job.batch.data_ptr(), *job.batch.stride(), job.room.data_ptr()]
    args = [*where, num_channels, num_samples, job.padded, job.tile, num_chunks]
    run("lay_out", job.batch.dtype, torch.int32, num_parts, args, work)


def _num_parts_of_rows(pattern: Pattern, num_threads: int) -> int:
    """Every part searches all columns for its first row, which should be little beside its own entries."""
    if num_threads == 1:
        return 1
    return max(num_threads, min(4 * num_threads, pattern.num_entries // (8 * pattern.num_columns + 1)))
