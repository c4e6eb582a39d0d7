"""Between values in column order and an ordinary matrix, for layers that are faster dense."""

import torch
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern
from regrow.kernels.cpu.tables import Exchange, filler
from regrow.kernels.cpu.threads import run

_fill = filler(Exchange)


def densify(pattern: Pattern, values: Tensor) -> Tensor:
    """The matrix [num_rows, num_columns] with zeros where the pattern has no entry."""
    matrix = values.new_zeros(pattern.num_rows, pattern.num_columns)
    _exchange(pattern, values.detach().contiguous(), matrix, inward=True)
    return matrix


def values_at(pattern: Pattern, matrix: Tensor) -> Tensor:
    """The entries of a matrix at the places of a pattern, in column order."""
    values = matrix.new_empty(pattern.num_entries)
    _exchange(pattern, values, matrix.contiguous(), inward=False)
    return values


def _exchange(pattern: Pattern, values: Tensor, matrix: Tensor, inward: bool) -> None:
    table = _fill(pattern=pattern.table, values=values.data_ptr(), matrix=matrix.data_ptr(), inward=inward)
    run("exchange", values.dtype, pattern.rows.dtype, torch.get_num_threads(), table, work=32 * pattern.num_entries)
