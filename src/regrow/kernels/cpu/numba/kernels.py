"""All kernels by name. Each does part number `part` of a job whose arguments are numbers[2], numbers[3], ..."""

from regrow.kernels.cpu.numba.conv import conv_both, conv_forward, conv_order, conv_values
from regrow.kernels.cpu.numba.linear import lay_out, linear_both, linear_forward, linear_values
from regrow.kernels.cpu.numba.norm import block_both, block_forward, block_values, norm_backward, norm_forward
from regrow.kernels.cpu.numba.order import (
    fill_matrix,
    list_by_row,
    number_entries,
    order_by_row,
    read_entries,
    read_matrix,
)

__all__ = [
    "block_both",
    "block_forward",
    "block_values",
    "conv_both",
    "conv_forward",
    "conv_order",
    "conv_values",
    "fill_matrix",
    "lay_out",
    "linear_both",
    "linear_forward",
    "linear_values",
    "list_by_row",
    "norm_backward",
    "norm_forward",
    "number_entries",
    "order_by_row",
    "read_entries",
    "read_matrix",
]
