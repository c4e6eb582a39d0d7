"""The entries of a weight matrix in column order and in row order: how one is made from the other, and cut into parts.

Going through rows from the first to the last meets the entries of every column in their stored order. So one cursor
per column leads from an entry in row order to its value, and no permutation need be kept.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.simd import pointer


@register_jitable
def read_entries(numbers, part, value, index):
    """Rows in few bytes and how many entries begin before each column; at `wrong` the first entry that is amiss."""
    rows, columns, num = pointer(numbers[2], types.int64), pointer(numbers[3], types.int64), numbers[4]
    num_rows, num_columns = numbers[5], numbers[6]
    own, col_starts, wrong = (
        pointer(numbers[7], index),
        pointer(numbers[8], types.int32),
        pointer(numbers[9], types.int64),
    )
    r, c = -1, 0
    for i in range(num):
        is_next = columns[i] > c or (columns[i] == c and rows[i] > r)
        r, c = rows[i], columns[i]
        if not is_next or r < 0 or r >= num_rows or c >= num_columns:
            wrong[0] = i
            return
        own[i] = r
        col_starts[c + 1] += 1
    for c in range(num_columns):
        col_starts[c + 1] += col_starts[c]


@register_jitable
def order_by_row(numbers, part, value, index):
    """From rows in column order: how many entries begin before each row, and the column of each entry in row order."""
    rows, col_starts = pointer(numbers[2], index), pointer(numbers[3], types.int32)
    columns, row_starts = pointer(numbers[4], index), pointer(numbers[5], types.int32)
    num_rows, num_columns = numbers[6], numbers[7]
    for i in range(types.intp(col_starts[num_columns])):
        row_starts[types.intp(rows[i]) + 1] += 1
    for r in range(num_rows):
        row_starts[r + 1] += row_starts[r]
    for c in range(num_columns):  # row_starts[r] serves as the cursor of row r, and ends up where row r + 1 begins
        for i in range(types.intp(col_starts[c]), types.intp(col_starts[c + 1])):
            r = types.intp(rows[i])
            columns[row_starts[r]] = c
            row_starts[r] += 1
    for r in range(num_rows, 0, -1):
        row_starts[r] = row_starts[r - 1]
    row_starts[0] = 0


@register_jitable
def number_entries(numbers, part, value, index):
    """Of a range of columns, in column order: row * row_step + column * column_step."""
    col_starts, rows = pointer(numbers[2], types.int32), pointer(numbers[3], index)
    num_columns, row_step, column_step = numbers[4], numbers[5], numbers[6]
    made = pointer(numbers[7], types.int64)
    for c in range(num_columns * part // numbers[1], num_columns * (part + 1) // numbers[1]):
        for i in range(types.intp(col_starts[c]), types.intp(col_starts[c + 1])):
            made[i] = types.intp(rows[i]) * row_step + c * column_step


@register_jitable
def list_by_row(numbers, part, value, index):
    """In row order: row * num_columns + column, and which entry it is in column order; cursors begin as col_starts."""
    row_starts, columns = pointer(numbers[2], types.int32), pointer(numbers[3], index)
    num_rows, num_columns, cursors = numbers[4], numbers[5], pointer(numbers[6], types.int32)
    made, order = pointer(numbers[7], types.int64), pointer(numbers[8], types.int64)
    for r in range(num_rows):
        for i in range(types.intp(row_starts[r]), types.intp(row_starts[r + 1])):
            c = types.intp(columns[i])
            made[i] = r * num_columns + c
            order[i] = cursors[c]
            cursors[c] += 1


@register_jitable
def fill_matrix(numbers, part, value, index):
    """Put the values of a range of columns to their places in a matrix."""
    col_starts, rows = pointer(numbers[2], types.int32), pointer(numbers[3], index)
    num_columns, values, matrix = numbers[4], pointer(numbers[5], value), pointer(numbers[6], value)
    for c in range(num_columns * part // numbers[1], num_columns * (part + 1) // numbers[1]):
        for i in range(types.intp(col_starts[c]), types.intp(col_starts[c + 1])):
            matrix[types.intp(rows[i]) * num_columns + c] = values[i]


@register_jitable
def read_matrix(numbers, part, value, index):
    """Read the values of a range of columns from their places in a matrix."""
    col_starts, rows = pointer(numbers[2], types.int32), pointer(numbers[3], index)
    num_columns, values, matrix = numbers[4], pointer(numbers[5], value), pointer(numbers[6], value)
    for c in range(num_columns * part // numbers[1], num_columns * (part + 1) // numbers[1]):
        for i in range(types.intp(col_starts[c]), types.intp(col_starts[c + 1])):
            values[i] = matrix[types.intp(rows[i]) * num_columns + c]


@register_jitable
def first_of(part, num_parts, starts, length):
    """The row with which a part begins if rows and their entries, one worth as much as the other, are shared evenly."""
    goal = (types.intp(starts[length]) + length) * part // num_parts
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if types.intp(starts[middle]) + middle < goal:
            low = middle + 1
        else:
            high = middle
    return low


@register_jitable
def put_in_row_order(values, by_row, row_starts, columns, col_starts, rows, num_columns, first, last, cursors):
    """The values of the rows from `first` up to `last` from column order to row order."""
    for c in range(num_columns):
        cursors[c] = first_at(first, rows, types.intp(col_starts[c]), types.intp(col_starts[c + 1]))
    for i in range(types.intp(row_starts[first]), types.intp(row_starts[last])):
        c = types.intp(columns[i])
        by_row[i] = values[cursors[c]]
        cursors[c] += 1


@register_jitable
def first_at(row, rows, begin, end):
    """The first of a column's entries that is not above a row; without branches, which nobody could predict."""
    num = end - begin if row > 0 else 0
    while num > 0:
        half = num // 2
        above = types.intp(rows[begin + half]) < row
        begin = begin + half + 1 if above else begin
        num = num - half - 1 if above else half
    return begin
