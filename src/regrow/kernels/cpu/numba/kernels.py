"""All kernels by name. Each does part number `part` of a job; the table that it takes is declared with it."""

from regrow.kernels.cpu.numba.conv import conv_backward, conv_forward, conv_order
from regrow.kernels.cpu.numba.linear import lay_out, linear_backward, linear_forward, vector_forward
from regrow.kernels.cpu.numba.norm import block_backward, block_forward, norm_backward, norm_forward
from regrow.kernels.cpu.numba.order import exchange, list_by_row, number_entries, order_by_row, read_entries

__all__ = [
    "block_backward",
    "block_forward",
    "conv_backward",
    "conv_forward",
    "conv_order",
    "exchange",
    "lay_out",
    "linear_backward",
    "linear_forward",
    "list_by_row",
    "norm_backward",
    "norm_forward",
    "number_entries",
    "order_by_row",
    "read_entries",
    "vector_forward",
]
