"""Sparse linear layers on a CPU: y = x W' + b and its gradients, computed on the nonzeros of W alone.

Each entry of the results is computed by one thread in a fixed order: they are the same whatever the number of threads.
"""

import torch
from torch import Tensor

from regrow.kernels.pattern import Pattern
from regrow.kernels.team import run

_LANES, _CHUNK = 16, 16  # as in the kernels
_FORWARD_TILE, _BACKWARD_TILE = 64, 128  # samples side by side: a tile of sums in registers; long runs to sum over
_MOST_SAMPLES = 4096  # laid out at once, which bounds the memory that a call takes besides its results


def linear_forward(pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """y of shape [..., num_rows] for x of shape [..., num_columns]."""
    batch = x if x.ndim == 2 else x.reshape(-1, pattern.num_columns)
    y = batch.new_empty(len(batch), pattern.num_rows)
    if pattern.num_rows:
        for first in range(0, len(batch), _MOST_SAMPLES):
            rows = slice(first, first + _MOST_SAMPLES)
            _forward(pattern, values, batch[rows], bias, y[rows])
    return y if x.ndim == 2 else y.view(*x.shape[:-1], pattern.num_rows)


def linear_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    batch = x if x.ndim == 2 else x.reshape(-1, pattern.num_columns)
    below = dy if dy.ndim == 2 else dy.reshape(-1, pattern.num_rows)
    dx = batch.new_empty(batch.shape) if needs_input else None
    gradient = torch.zeros_like(values)
    if pattern.num_columns:
        for first in range(0, len(batch), _MOST_SAMPLES):
            rows = slice(first, first + _MOST_SAMPLES)
            _backward(pattern, values, batch[rows], below[rows], None if dx is None else dx[rows], gradient)
    return None if dx is None else dx.view(x.shape), gradient


def _forward(pattern: Pattern, values: Tensor, batch: Tensor, bias: Tensor | None, y: Tensor) -> None:
    tiles, padded = _lay_out(batch, _FORWARD_TILE)
    num_parts = _num_parts_of_rows(pattern)
    room = batch.new_empty(pattern.num_entries + num_parts * (_CHUNK * _FORWARD_TILE + pattern.num_columns))
    by_row = room.data_ptr()
    sums = by_row + room.element_size() * pattern.num_entries
    cursors = sums + room.element_size() * num_parts * _CHUNK * _FORWARD_TILE
    where = [*pattern.by_row, *pattern.by_column, pattern.num_rows, pattern.num_columns]
    what = [values.data_ptr(), by_row, tiles.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr()]
    args = [*where, *what, len(batch), padded, _FORWARD_TILE, cursors, sums]
    work = pattern.num_entries * padded
    run("linear_forward", values.dtype, pattern.rows.dtype, num_parts, args, work)


def _backward(pattern: Pattern, values: Tensor, batch: Tensor, dy: Tensor, dx: Tensor | None, gradient: Tensor) -> None:
    tiles, padded = _lay_out(dy, _BACKWARD_TILE)
    num_parts = 4 * torch.get_num_threads()
    room = batch.new_empty(num_parts * 2 * _CHUNK * _BACKWARD_TILE)
    where = [*pattern.by_column, pattern.num_rows, pattern.num_columns, values.data_ptr(), gradient.data_ptr()]
    what = [batch.data_ptr(), *batch.stride(), tiles.data_ptr(), 0 if dx is None else dx.data_ptr()]
    args = [*where, *what, len(batch), padded, _BACKWARD_TILE, room.data_ptr()]
    kernel = "linear_values" if dx is None else "linear_both"
    run(kernel, values.dtype, pattern.rows.dtype, num_parts, args, 2 * pattern.num_entries * padded)


def _lay_out(batch: Tensor, tile: int) -> tuple[Tensor, int]:
    """A batch in tiles with samples side by side, and how many samples that makes with the padding."""
    num_samples, num_channels = batch.shape
    padded = -(-num_samples // _LANES) * _LANES
    tiles = batch.new_empty(padded * num_channels)
    num_chunks = max(1, min(4 * torch.get_num_threads(), num_channels // 64))
    num_parts = -(-padded // tile) * num_chunks
    args = [batch.data_ptr(), *batch.stride(), tiles.data_ptr(), num_channels, num_samples, padded, tile, num_chunks]
    run("lay_out", batch.dtype, torch.int32, num_parts, args, work=4 * padded * num_channels)
    return tiles, padded


def _num_parts_of_rows(pattern: Pattern) -> int:
    """Every part searches all columns for its first row, which should be little beside its own entries."""
    num_threads = torch.get_num_threads()
    return max(num_threads, min(4 * num_threads, pattern.num_entries // (8 * pattern.num_columns + 1)))
