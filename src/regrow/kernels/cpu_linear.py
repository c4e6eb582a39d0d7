"""Sparse linear layers on a CPU: y = x W' + b and its gradients, computed on the nonzeros of W alone.

Each entry of the results is computed by one thread in a fixed order: they are the same whatever the number of threads.
"""

import torch
from torch import Tensor

from regrow.kernels.pattern import Pattern
from regrow.kernels.team import run

_LANES = 16
_FORWARD_TILE, _BACKWARD_TILE = 64, 128  # samples side by side: a tile of sums in registers; long runs to sum over
_CHUNK = 16


def linear_forward(pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """y of shape [..., num_rows] for x of shape [..., num_columns]."""
    batch = x.detach().reshape(-1, pattern.num_columns)
    y = batch.new_empty(len(batch), pattern.num_rows)
    if bias is None:
        bias = batch.new_zeros(pattern.num_rows)
    if y.numel():
        tiles, padded = _lay_out(batch, _FORWARD_TILE)
        num_parts = _num_parts_of_rows(pattern)
        work = pattern.num_entries * padded
        run(
            "linear_forward",
            values.dtype,
            pattern.rows.dtype,
            num_parts,
            pattern.row_starts,
            pattern.columns,
            pattern.col_starts,
            pattern.rows,
            pattern.num_rows,
            pattern.num_columns,
            values,
            torch.empty_like(values),
            tiles,
            bias,
            y,
            len(batch),
            padded,
            _FORWARD_TILE,
            torch.empty(num_parts * pattern.num_columns, dtype=torch.int32),
            batch.new_empty(num_parts * _CHUNK * _FORWARD_TILE),
            work=work,
        )
    return y.view(*x.shape[:-1], pattern.num_rows)


def linear_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    batch, below = x.detach().reshape(-1, pattern.num_columns), dy.reshape(-1, pattern.num_rows)
    dx = batch.new_empty(batch.shape) if needs_input else None
    gradient = torch.zeros_like(values)
    if batch.numel():
        tiles, padded = _lay_out(below, _BACKWARD_TILE)
        num_parts = 4 * torch.get_num_threads()
        run(
            "linear_both" if needs_input else "linear_values",
            values.dtype,
            pattern.rows.dtype,
            num_parts,
            pattern.col_starts,
            pattern.rows,
            pattern.num_rows,
            pattern.num_columns,
            values,
            gradient,
            batch,
            batch.stride(0),
            batch.stride(1),
            tiles,
            gradient if dx is None else dx,
            len(batch),
            padded,
            _BACKWARD_TILE,
            batch.new_empty(num_parts * 2 * _CHUNK * _BACKWARD_TILE),
            work=2 * pattern.num_entries * padded,
        )
    return None if dx is None else dx.view(x.shape), gradient


def _lay_out(batch: Tensor, tile: int) -> tuple[Tensor, int]:
    """A batch in tiles with samples side by side, and how many samples that makes with the padding."""
    num_samples, num_channels = batch.shape
    padded = -(-num_samples // _LANES) * _LANES
    tiles = batch.new_empty(padded * num_channels)
    num_chunks = max(1, min(4 * torch.get_num_threads(), num_channels // 64))
    num_parts = -(-padded // tile) * num_chunks
    run(
        "lay_out",
        batch.dtype,
        torch.int32,
        num_parts,
        batch,
        batch.stride(0),
        batch.stride(1),
        tiles,
        num_channels,
        num_samples,
        padded,
        tile,
        num_chunks,
        work=4 * padded * num_channels,
    )
    return tiles, padded


def _num_parts_of_rows(pattern: Pattern) -> int:
    """Every part searches all columns for its first row, which should be little beside its own entries."""
    num_threads = torch.get_num_threads()
    return max(num_threads, min(4 * num_threads, pattern.num_entries // (8 * pattern.num_columns)))
