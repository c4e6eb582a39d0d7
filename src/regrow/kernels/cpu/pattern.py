"""Where the nonzeros of a weight matrix are, in the two orders in which the CPU kernels walk through them."""

from array import array
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regrow.kernels.cpu.tables import Entries, ListByRow, NumberEntries, OrderByRow, ReadEntries, Table, kept
from regrow.kernels.cpu.threads import run

KERNEL_DTYPES = (torch.float32, torch.float64)
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
    def table(self) -> Entries:
        """Where the kernels find both orders."""
        return Entries(
            row_starts=self.row_starts.data_ptr(),
            columns=self.columns.data_ptr(),
            col_starts=self.col_starts.data_ptr(),
            rows=self.rows.data_ptr(),
            num_rows=self.num_rows,
            num_columns=self.num_columns,
        )

    @cached_property
    def _kept(self) -> "tuple[array[int], int]":
        return kept(self.table)

    @property
    def address(self) -> int:
        """Where that is written down."""
        return self._kept[1]

    @cached_property
    def plans(self) -> dict[Any, Any]:
        """How passes through a layer with this pattern go, as worked out so far."""
        return {}

    @property
    def num_bytes(self) -> int:
        """Memory taken by the indices."""
        return sum(t.nbytes for t in (self.rows, self.col_starts, self.columns, self.row_starts))

    def numbered(self, row_step: int, column_step: int) -> Tensor:
        """row * row_step + column * column_step of the entries, in column order."""
        made = torch.empty(self.num_entries, dtype=torch.int64, device="cpu")
        table = NumberEntries(
            pattern=self.table,
            row_step=row_step,
            column_step=column_step,
            made=made.data_ptr(),
        )
        self._run("number_entries", torch.get_num_threads(), table)
        return made

    def listed_by_row(self) -> tuple[Tensor, Tensor]:
        """row * num_columns + column of the entries, in row order, and which they are in column order."""
        made, order = (torch.empty(self.num_entries, dtype=torch.int64, device="cpu") for _ in range(2))
        cursors = self.col_starts.clone()
        table = ListByRow(
            pattern=self.table,
            cursors=cursors.data_ptr(),
            made=made.data_ptr(),
            order=order.data_ptr(),
        )
        self._run("list_by_row", 1, table)
        return made, order

    def turned(self) -> "Pattern":
        """That of the transposed matrix: the same two orders, which change places."""
        return Pattern(self.num_columns, self.num_rows, self.columns, self.row_starts, self.rows, self.col_starts)

    def _run(self, kernel: str, num_parts: int, table: Table) -> None:
        run(kernel, torch.float32, self.rows.dtype, num_parts, table, work=self.num_entries)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copying: addresses that were looked up do not go along."""
        return Pattern, tuple(getattr(self, field.name) for field in fields(self))


def make_pattern(rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> Pattern:
    """The pattern of entries given in column order, in a time proportional to their number.

    >>> pattern = make_pattern(torch.tensor([1, 0, 1]), torch.tensor([0, 2, 2]), num_rows=2, num_columns=3)
    >>> pattern.col_starts.tolist(), pattern.columns.tolist(), pattern.row_starts.tolist()
    ([0, 1, 1, 3], [2, 0, 2], [0, 1, 3])
    """
    num = len(rows)
    if max(num_rows, num_columns, num) > _LARGEST:
        raise ValueError(f"sparse CPU kernels count up to {_LARGEST} rows, columns and nonzeros; use dense storage")
    if len(columns) != num:
        raise ValueError(f"every entry has a row and a column, got {num} rows and {len(columns)} columns")
    given_rows, given_columns = (positions.to("cpu", torch.int64).contiguous() for positions in (rows, columns))
    index = torch.uint16 if max(num_rows, num_columns) <= 1 << 16 else torch.int32
    own, other = (torch.empty(num, dtype=index, device="cpu") for _ in range(2))
    lengths = (num_columns + 1, num_rows + 1)
    col_starts, row_starts = (torch.zeros(length, dtype=torch.int32, device="cpu") for length in lengths)
    pattern = Pattern(num_rows, num_columns, own, col_starts, other, row_starts)
    wrong = torch.tensor(-1, device="cpu")
    read = ReadEntries(
        made=pattern.table,
        rows=given_rows.data_ptr(),
        columns=given_columns.data_ptr(),
        num=num,
        wrong=wrong.data_ptr(),
    )
    run("read_entries", torch.float32, index, 1, read, work=num)
    if wrong >= 0:
        raise ValueError(
            f"entry {int(wrong)} at row {int(rows[wrong])}, column {int(columns[wrong])} is outside of {num_rows} x "
            f"{num_columns} or out of order; sort entries by column, then by row"
        )
    run("order_by_row", torch.float32, index, 1, OrderByRow(pattern.table), work=num)
    return pattern


def check_fits(pattern: Pattern, values: Tensor, *others: Tensor | None) -> None:
    """Refuse tensors that the kernels, which work on bare memory, would misread."""
    if values.dtype not in KERNEL_DTYPES or values.device.type != "cpu":
        raise TypeError(f"sparse CPU kernels take float32 or float64, got {values.dtype} on {values.device}; densify")
    if values.shape != pattern.rows.shape or not values.is_contiguous():
        raise ValueError(f"a pattern of {pattern.num_entries} entries takes as many values, got {tuple(values.shape)}")
    for other in others:
        if other is not None and (other.dtype != values.dtype or other.device != values.device):
            raise TypeError(f"values are {values.dtype}, but an input is {other.dtype} on {other.device}; convert it")
        if type(other) not in (Tensor, torch.nn.Parameter, type(None)):
            raise TypeError(
                f"sparse CPU kernels read the memory of plain tensors, got a {type(other).__name__}; densify"
            )


def bias_for(pattern: Pattern, bias: Tensor | None) -> Tensor | None:
    """One number for each row, side by side in memory, of a bias that may be one for all."""
    if bias is not None and bias.shape not in ((pattern.num_rows,), (1,), ()):
        raise ValueError(f"this layer has {pattern.num_rows} outputs, got a bias of shape {tuple(bias.shape)}")
    return None if bias is None else bias.expand(pattern.num_rows).contiguous()
