"""The entries of a weight matrix in column order and in row order: how one is made from the other, and cut into parts.

Going through rows from the first to the last meets the entries of every column in their stored order. So one cursor
per column leads from an entry in row order to its value, and no permutation need be kept.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.tables import Exchange, ListByRow, NumberEntries, OrderByRow, ReadEntries


@register_jitable
def read_entries(job: ReadEntries, part, num_parts, value):
    """Rows in few bytes and how many entries begin before each column; at `wrong` the first entry that is amiss."""
    made, rows, columns = job.made, job.rows, job.columns
    r, c = -1, 0
    for i in range(job.num):
        is_next = columns[i] > c or (columns[i] == c and rows[i] > r)
        r, c = rows[i], columns[i]
        if not is_next or r < 0 or r >= made.num_rows or c >= made.num_columns:
            job.wrong[0] = i
            return
        made.rows[i] = r
        made.col_starts[c + 1] += 1
    for c in range(made.num_columns):
        made.col_starts[c + 1] += made.col_starts[c]


@register_jitable
def order_by_row(job: OrderByRow, part, num_parts, value):
    """From rows in column order: how many entries begin before each row, and the column of each entry in row order."""
    row_starts, columns = job.pattern.row_starts, job.pattern.columns
    col_starts, rows = job.pattern.col_starts, job.pattern.rows
    num_rows, num_columns = job.pattern.num_rows, job.pattern.num_columns
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
def number_entries(job: NumberEntries, part, num_parts, value):
    """Of a range of columns, in column order: row * row_step + column * column_step."""
    pattern = job.pattern
    for c in range(pattern.num_columns * part // num_parts, pattern.num_columns * (part + 1) // num_parts):
        for i in range(types.intp(pattern.col_starts[c]), types.intp(pattern.col_starts[c + 1])):
            job.made[i] = types.intp(pattern.rows[i]) * job.row_step + c * job.column_step


@register_jitable
def list_by_row(job: ListByRow, part, num_parts, value):
    """In row order: row * num_columns + column, and which entry it is in column order; cursors begin as col_starts."""
    pattern, cursors = job.pattern, job.cursors
    for r in range(pattern.num_rows):
        for i in range(types.intp(pattern.row_starts[r]), types.intp(pattern.row_starts[r + 1])):
            c = types.intp(pattern.columns[i])
            job.made[i] = r * pattern.num_columns + c
            job.order[i] = cursors[c]
            cursors[c] += 1


@register_jitable
def exchange(job: Exchange, part, num_parts, value):
    """Put the values of a range of columns to their places in a matrix, or read them from there."""
    pattern, values, matrix = job.pattern, job.values, job.matrix
    for c in range(pattern.num_columns * part // num_parts, pattern.num_columns * (part + 1) // num_parts):
        for i in range(types.intp(pattern.col_starts[c]), types.intp(pattern.col_starts[c + 1])):
            at = types.intp(pattern.rows[i]) * pattern.num_columns + c
            if job.inward:
                matrix[at] = values[i]
            else:
                values[i] = matrix[at]


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
def put_in_row_order(pattern, values, by_row, first, last, cursors):
    """The values of the rows from `first` up to `last` from column order to row order."""
    columns, rows, col_starts = pattern.columns, pattern.rows, pattern.col_starts
    for c in range(pattern.num_columns):
        cursors[c] = first_at(first, rows, types.intp(col_starts[c]), types.intp(col_starts[c + 1]))
    for i in range(types.intp(pattern.row_starts[first]), types.intp(pattern.row_starts[last])):
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
