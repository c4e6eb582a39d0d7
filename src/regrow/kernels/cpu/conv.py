"""Sparse convolutions on a CPU: one, two or three dimensions, any stride, padding, dilation and groups.

Threads share the images. Each entry of y and dx is summed by one thread in a fixed order; the gradient of the values
is summed per thread first, so that it is the same from run to run with the same number of threads.
"""

from math import prod

import torch
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern, bias_for, check_fits
from regrow.kernels.cpu.planes import Convolution, Planes, plan
from regrow.kernels.cpu.threads import run


def conv_forward(pattern: Pattern, values: Tensor, x: Tensor, layer: Convolution, bias: Tensor | None = None) -> Tensor:
    """y of shape [images, rows, *pixels] for x of shape [images, channels, *pixels]."""
    _check(pattern, values, x, layer, bias)
    bias = bias_for(pattern, bias)
    y = x.new_empty(len(x), pattern.num_rows, *layer.output_size(tuple(x.shape[2:])))
    if y.numel():
        num_parts, planes = _plan(layer, x)
        by_row, places = _order(pattern, values, planes.taps)
        room = x.new_empty(num_parts * (planes.room + planes.y_step))
        sums = room.data_ptr() + room.element_size() * num_parts * planes.room
        what = [x.data_ptr(), y.data_ptr(), 0 if bias is None else bias.data_ptr()]
        where = [pattern.row_starts.data_ptr(), places.data_ptr(), by_row.data_ptr(), pattern.num_rows]
        sizes = [layer.groups, x.shape[1], len(x), *planes.sizes]
        args = [*planes.input(x), *planes.output(y), *what, *where, *sizes, room.data_ptr(), sums]
        work = pattern.num_entries * y[:, 0].numel()
        run("conv_forward", values.dtype, pattern.rows.dtype, num_parts, args, work)
    return y


def conv_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, layer: Convolution, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    _check(pattern, values, x, layer, dy)
    fitting = (len(x), pattern.num_rows, *layer.output_size(tuple(x.shape[2:])))
    if dy.shape != fitting:
        raise ValueError(f"the gradient of this layer's output has shape {fitting}, got {tuple(dy.shape)}")
    if not dy.numel():
        return torch.zeros_like(x) if needs_input else None, torch.zeros_like(values)
    dx = x.new_empty(x.shape) if needs_input else None
    num_parts, planes = _plan(layer, x)
    gradients = values.new_zeros(num_parts, pattern.num_entries)
    room, back = (x.new_empty(num_parts * planes.room) for _ in range(2))
    below = x.new_empty(num_parts * pattern.num_rows * planes.y_step)
    out = x if dx is None else dx
    what = [x.data_ptr(), dy.data_ptr(), out.data_ptr(), *pattern.by_column, planes.taps.data_ptr(), values.data_ptr()]
    sizes = [pattern.num_rows, pattern.num_columns, layer.groups, x.shape[1], len(x), *planes.sizes]
    rooms = [tensor.data_ptr() for tensor in (room, back, below, gradients)]
    args = [*planes.input(x), *planes.output(dy), *planes.input(out), *what, *sizes, *rooms]
    kernel, work = "conv_both" if needs_input else "conv_values", 2 * pattern.num_entries * dy[:, 0].numel()
    run(kernel, values.dtype, pattern.rows.dtype, num_parts, args, work)
    return dx, gradients.sum(0)


def _check(pattern: Pattern, values: Tensor, x: Tensor, layer: Convolution, other: Tensor | None) -> None:
    check_fits(pattern, values, x, other)
    num_channels = pattern.num_columns // prod(layer.kernel_size) * layer.groups
    if x.ndim != 2 + len(layer.kernel_size) or x.shape[1] != num_channels:
        raise ValueError(f"this layer takes images of {num_channels} channels, got a tensor of shape {tuple(x.shape)}")


def _plan(layer: Convolution, x: Tensor) -> tuple[int, Planes]:
    """Among how many threads the images are shared, and how those of one thread lie in planes."""
    num_parts = min(torch.get_num_threads(), len(x))
    return num_parts, plan(layer, tuple(x.shape[2:]), x.shape[1], -(-len(x) // num_parts))


def _order(pattern: Pattern, values: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Values in row order, and where the tap of each begins in the planes."""
    num_parts = torch.get_num_threads() if pattern.num_entries > 64 * pattern.num_columns else 1
    by_row, places = torch.empty_like(values), values.new_empty(pattern.num_entries, dtype=torch.int32)
    cursors = values.new_empty(num_parts * pattern.num_columns, dtype=torch.int32)
    where = [*pattern.by_row, *pattern.by_column, pattern.num_rows, pattern.num_columns]
    args = [*where, *(tensor.data_ptr() for tensor in (values, by_row, taps, places, cursors))]
    run("conv_order", values.dtype, pattern.rows.dtype, num_parts, args, work=16 * pattern.num_entries)
    return by_row, places
