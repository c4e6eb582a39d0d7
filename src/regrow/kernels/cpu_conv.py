"""Sparse convolutions on a CPU: one, two or three dimensions, any stride, padding, dilation and groups.

Threads share the images. Each entry of y and dx is summed by one thread in a fixed order; the gradient of the values
is summed per thread first, so that it is the same from run to run with the same number of threads.
"""

import torch
from torch import Tensor

from regrow.kernels.pattern import Pattern
from regrow.kernels.planes import Convolution, plan
from regrow.kernels.team import run


def conv_forward(pattern: Pattern, values: Tensor, x: Tensor, layer: Convolution, bias: Tensor | None = None) -> Tensor:
    """y of shape [images, rows, *pixels] for x of shape [images, channels, *pixels]."""
    x = x.detach()
    y = x.new_empty(len(x), pattern.num_rows, *layer.output_size(tuple(x.shape[2:])))
    if y.numel():
        num_parts = min(torch.get_num_threads(), len(x))
        planes = plan(layer, tuple(x.shape[2:]), x.shape[1], -(-len(x) // num_parts))
        by_row, places = _order(pattern, values, planes.taps)
        run(
            "conv_forward",
            values.dtype,
            pattern.rows.dtype,
            num_parts,
            *planes.picture(x, is_input=True),
            *planes.picture(y, is_input=False),
            x,
            y,
            x.new_zeros(pattern.num_rows) if bias is None else bias,
            pattern.row_starts,
            places,
            by_row,
            pattern.num_rows,
            layer.groups,
            x.shape[1],
            len(x),
            planes.run,
            planes.x_step,
            planes.y_step,
            planes.lead,
            planes.room,
            x.new_empty(num_parts * planes.room),
            x.new_empty(num_parts * planes.y_step),
            work=pattern.num_entries * y[:, 0].numel(),
        )
    return y


def conv_backward(
    pattern: Pattern, values: Tensor, x: Tensor, dy: Tensor, layer: Convolution, needs_input: bool = True
) -> tuple[Tensor | None, Tensor]:
    """(dx or None, gradient of the values) in one pass through the columns."""
    x, dy = x.detach(), dy.detach()
    dx = x.new_zeros(x.shape) if needs_input else None
    if not dy.numel():
        return dx, torch.zeros_like(values)
    num_parts = min(torch.get_num_threads(), len(x))
    planes = plan(layer, tuple(x.shape[2:]), x.shape[1], -(-len(x) // num_parts))
    gradients = values.new_zeros(num_parts, pattern.num_entries)
    out = x if dx is None else dx
    run(
        "conv_both" if needs_input else "conv_values",
        values.dtype,
        pattern.rows.dtype,
        num_parts,
        *planes.picture(x, is_input=True),
        *planes.picture(dy, is_input=False),
        *planes.picture(out, is_input=True),
        x,
        dy,
        out,
        pattern.col_starts,
        pattern.rows,
        planes.taps,
        values,
        pattern.num_rows,
        pattern.num_columns,
        layer.groups,
        x.shape[1],
        len(x),
        planes.run,
        planes.x_step,
        planes.y_step,
        planes.lead,
        planes.room,
        x.new_empty(num_parts * planes.room),
        x.new_empty(num_parts * planes.room if needs_input else 0),
        x.new_empty(num_parts * pattern.num_rows * planes.y_step),
        gradients,
        work=2 * pattern.num_entries * dy[:, 0].numel(),
    )
    return dx, gradients.sum(0)


def _order(pattern: Pattern, values: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Values in row order, and where the tap of each begins in the planes."""
    num_parts = torch.get_num_threads() if pattern.num_entries > 64 * pattern.num_columns else 1
    by_row, places = torch.empty_like(values), torch.empty(pattern.num_entries, dtype=torch.int32)
    run(
        "conv_order",
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
        by_row,
        taps,
        places,
        torch.empty(num_parts * pattern.num_columns, dtype=torch.int32),
        work=16 * pattern.num_entries,
    )
    return by_row, places
