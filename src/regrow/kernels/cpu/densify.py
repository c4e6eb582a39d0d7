"""Between values in column order and an ordinary matrix, for layers that are faster dense."""

import torch
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern
from regrow.kernels.cpu.threads import run


def densify(pattern: Pattern, values: Tensor) -> Tensor:
    """The matrix [num_rows, num_columns] with zeros where the pattern has no entry."""
    matrix = values.new_zeros(pattern.num_rows, pattern.num_columns)
    _exchange("fill_matrix", pattern, values.detach().contiguous(), matrix)
    return matrix


def values_at(pattern: Pattern, matrix: Tensor) -> Tensor:
    """The entries of a matrix at the places of a pattern, in column order."""
    values = matrix.new_empty(pattern.num_entries)
    _exchange("read_matrix", pattern, values, matrix.contiguous())
    return values


def _exchange(kernel: str, pattern: Pattern, values: Tensor, matrix: Tensor) -> None:
    args = [*pattern.by_column, pattern.num_columns, values.data_ptr(), matrix.data_ptr()]
    run(kernel, values.dtype, pattern.rows.dtype, torch.get_num_threads(), args, work=32 * pattern.num_entries)
