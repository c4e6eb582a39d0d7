"""Where the nonzeros of a weight matrix are, in the two orders in which the CPU kernels walk through them."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regrow.kernels.team import run

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Pattern:
    """The positions of a matrix of `num_rows` x `num_columns`, whose values lie in column order beside it.

    - column order: `rows` of the entries, ascending by column and within a column by row; column c is the stretch
      col_starts[c] : col_starts[c + 1].
    - row order: `columns` of the entries, ascending by row and within a row by column; likewise `row_starts`.

    Indices take two bytes where both sides are at most 65536, else four; nothing has the size of all positions.
    """

    num_rows: int
    num_columns: int
    rows: Tensor
    col_starts: Tensor
    columns: Tensor
    row_starts: Tensor

    @cached_property
    def num_entries(self) -> int:
        return self.rows.numel()

    @cached_property
    def by_column(self) -> tuple[int, int]:
        """Where the kernels find column order: the addresses of `col_starts` and `rows`."""
        return self.col_starts.data_ptr(), self.rows.data_ptr()

    @cached_property
    def by_row(self) -> tuple[int, int]:
        """Where the kernels find row order: the addresses of `row_starts` and `columns`."""
        return self.row_starts.data_ptr(), self.columns.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Memory taken by the indices."""
        return sum(t.nbytes for t in (self.rows, self.col_starts, self.columns, self.row_starts))

    def __reduce__(self) -> tuple[Any, ...]:
        """For copying: addresses that were looked up do not go along."""
        return Pattern, tuple(getattr(self, field.name) for field in fields(self))


def make_pattern(rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> Pattern:
    """The pattern of entries given in column order, in a time proportional to their number.

    >>> pattern = make_pattern(torch.tensor([1, 0, 1]), torch.tensor([0, 2, 2]), num_rows=2, num_columns=3)
    >>> pattern.col_starts.tolist(), pattern.columns.tolist(), pattern.row_starts.tolist()
    ([0, 1, 1, 3], [2, 0, 2], [0, 1, 3])
    """
    if max(num_rows, num_columns, len(rows)) > _LARGEST:
        raise ValueError(f"sparse CPU kernels count up to {_LARGEST} rows, columns and nonzeros; use dense storage")
    index = torch.uint16 if max(num_rows, num_columns) <= 1 << 16 else torch.int32
    col_starts = torch.zeros(num_columns + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(columns, minlength=num_columns), 0, out=col_starts[1:])
    own = rows.to(index).contiguous()
    other, row_starts = torch.empty_like(own), torch.zeros(num_rows + 1, dtype=torch.int32)
    pointers = [tensor.data_ptr() for tensor in (own, col_starts, other, row_starts)]
    run("order_by_row", torch.float32, index, 1, [*pointers, num_rows, num_columns], work=len(rows))
    return Pattern(num_rows, num_columns, own, col_starts, other, row_starts)
