"""Sparse convolutions on a CPU: one, two or three dimensions, any stride, padding, dilation and groups.

Threads share the images. Each entry of y and dx is summed by one thread in a fixed order; the gradient of the values
is summed per thread first, so that it is the same from run to run with the same number of threads.
"""

from math import prod

import torch
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern, bias_for, check_fits
from regrow.kernels.cpu.planes import Convolution, Planes, planes_for
from regrow.kernels.cpu.tables import ConvBackward, ConvForward, ConvOrder, filler
from regrow.kernels.cpu.threads import run

_conv_forward, _conv_backward, _conv_order = filler(ConvForward), filler(ConvBackward), filler(ConvOrder)


def conv_forward(pattern: Pattern, values: Tensor, x: Tensor, how: Convolution, bias: Tensor | None = None) -> Tensor:
    """y of shape [images, rows, *pixels] for x of shape [images, channels, *pixels]."""
    _check(pattern, values, x, how, bias)
    bias = bias_for(pattern, bias)
    y = x.new_empty(len(x), pattern.num_rows, *how.output_size(tuple(x.shape[2:])))
    if y.numel():
        num_parts, planes = _planes(how, x)
        by_row, places = _order(pattern, values, planes.taps)
        plane_memory = x.new_empty(num_parts, planes.sizes.plane_memory)
        sums = x.new_empty(num_parts, planes.sizes.output_step)
        table = _conv_forward(
            x_pictures=planes.inputs(x),
            y_pictures=planes.outputs(y),
            sizes=planes.sizes,
            pattern=pattern.table,
            x=x.data_ptr(),
            y=y.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            places=places.data_ptr(),
            by_row=by_row.data_ptr(),
            num_groups=how.groups,
            num_channels=x.shape[1],
            num_images=len(x),
            planes=plane_memory.data_ptr(),
            sums=sums.data_ptr(),
        )
        work = pattern.num_entries * y[:, 0].numel()
        run("conv_forward", values.dtype, pattern.rows.dtype, num_parts, table, work)
    return y


def conv_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, how: Convolution, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    _check(pattern, values, x, how, dy)
    fitting = (len(x), pattern.num_rows, *how.output_size(tuple(x.shape[2:])))
    if dy.shape != fitting:
        raise ValueError(f"the gradient of this layer's output has shape {fitting}, got {tuple(dy.shape)}")
    if not dy.numel():
        return torch.zeros_like(x) if needs_input else None, torch.zeros_like(values)
    dx = x.new_empty(x.shape) if needs_input else None
    num_parts, planes = _planes(how, x)
    gradients = values.new_zeros(num_parts, pattern.num_entries)
    plane_memory, back = (x.new_empty(num_parts, planes.sizes.plane_memory) for _ in range(2))
    below = x.new_empty(num_parts, pattern.num_rows, planes.sizes.output_step)
    table = _conv_backward(
        x_pictures=planes.inputs(x),
        y_pictures=planes.outputs(dy),
        dx_pictures=planes.inputs(x if dx is None else dx),
        sizes=planes.sizes,
        pattern=pattern.table,
        x=x.data_ptr(),
        dy=dy.data_ptr(),
        dx=0 if dx is None else dx.data_ptr(),
        taps=planes.taps.data_ptr(),
        values=values.data_ptr(),
        num_groups=how.groups,
        num_channels=x.shape[1],
        num_images=len(x),
        planes=plane_memory.data_ptr(),
        back=back.data_ptr(),
        below=below.data_ptr(),
        gradients=gradients.data_ptr(),
    )
    work = 2 * pattern.num_entries * dy[:, 0].numel()
    run("conv_backward", values.dtype, pattern.rows.dtype, num_parts, table, work)
    return dx, gradients.sum(0)


def _check(pattern: Pattern, values: Tensor, x: Tensor, how: Convolution, other: Tensor | None) -> None:
    check_fits(pattern, values, x, other)
    num_channels = pattern.num_columns // prod(how.kernel_size) * how.groups
    if x.ndim != 2 + len(how.kernel_size) or x.shape[1] != num_channels:
        raise ValueError(f"this layer takes images of {num_channels} channels, got a tensor of shape {tuple(x.shape)}")


def _planes(how: Convolution, x: Tensor) -> tuple[int, Planes]:
    """Among how many threads the images are shared, and how those of one thread lie in planes."""
    num_parts = min(torch.get_num_threads(), len(x))
    return num_parts, planes_for(how, tuple(x.shape[2:]), x.shape[1], -(-len(x) // num_parts))


def _order(pattern: Pattern, values: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Values in row order, and where the tap of each begins in the planes."""
    num_parts = torch.get_num_threads() if pattern.num_entries > 64 * pattern.num_columns else 1
    by_row, places = torch.empty_like(values), values.new_empty(pattern.num_entries, dtype=torch.int32)
    cursors = values.new_empty(num_parts * pattern.num_columns, dtype=torch.int32)
    table = _conv_order(
        pattern=pattern.table,
        values=values.data_ptr(),
        by_row=by_row.data_ptr(),
        taps=taps.data_ptr(),
        places=places.data_ptr(),
        cursors=cursors.data_ptr(),
    )
    run("conv_order", values.dtype, pattern.rows.dtype, num_parts, table, work=16 * pattern.num_entries)
    return by_row, places
