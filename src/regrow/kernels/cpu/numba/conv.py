"""Convolutions: every nonzero of the weight is one run of multiplications over all pixels of a few images.

Results at the margin of the planes mean nothing and are left out; gradients there are 0.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.order import first_of, put_in_row_order
from regrow.kernels.cpu.numba.planes import copy_planes, fill_zeros, plane_size
from regrow.kernels.cpu.numba.simd import ahead, pointer
from regrow.kernels.cpu.numba.sums import both_gradients, sum_row, values_gradient


@register_jitable
def conv_order(numbers, part, value, index):
    """Values in row order, and for each where its tap begins in the planes, for a range of rows."""
    row_starts, columns = pointer(numbers[2], types.int32), pointer(numbers[3], index)
    col_starts, rows = pointer(numbers[4], types.int32), pointer(numbers[5], index)
    num_rows, num_columns = numbers[6], numbers[7]
    values, by_row = pointer(numbers[8], value), pointer(numbers[9], value)
    taps, places = pointer(numbers[10], types.int32), pointer(numbers[11], types.int32)
    cursors = ahead(pointer(numbers[12], types.int32), part * num_columns)
    r0 = first_of(part, numbers[1], row_starts, num_rows)
    r1 = first_of(part + 1, numbers[1], row_starts, num_rows)
    put_in_row_order(values, by_row, row_starts, columns, col_starts, rows, num_columns, r0, r1, cursors)
    for i in range(types.intp(row_starts[r0]), types.intp(row_starts[r1])):
        places[i] = taps[types.intp(columns[i])]


@register_jitable
def conv_forward(numbers, part, value, index):
    """y[image, row, pixel] = bias[row] + sum over the row's entries of value * x[image, tap, pixel], some images."""
    x_picture, y_picture, rest = ahead(numbers, 2), ahead(numbers, 17), ahead(numbers, 32)
    x, y, bias = pointer(rest[0], value), pointer(rest[1], value), pointer(rest[2], value)
    row_starts, places = pointer(rest[3], types.int32), pointer(rest[4], types.int32)
    by_row, num_rows = pointer(rest[5], value), rest[6]
    num_groups, num_channels, num_images, run = rest[7], rest[8], rest[9], rest[10]
    x_step, y_step, lead, room = rest[11], rest[12], rest[13], rest[14]
    planes = ahead(pointer(rest[15], value), part * room + lead)
    sums = ahead(pointer(rest[16], value), part * y_step)
    rows_of_group, group_step = num_rows // num_groups, num_channels // num_groups * x_step

    fill_zeros(ahead(planes, -lead), room)
    last = num_images * (part + 1) // numbers[1]
    for n in range(num_images * part // numbers[1], last, x_picture[14]):
        num = min(x_picture[14], last - n)
        width = ((num - 1) * plane_size(x_picture) + run + 15) // 16 * 16
        copy_planes(x_picture, ahead(x, n * x_picture[0]), num, num_channels, planes, x_step, True)
        for r in range(num_rows):
            begin = types.intp(row_starts[r])
            entries = types.intp(row_starts[r + 1]) - begin
            group = ahead(planes, r // rows_of_group * group_step)
            start = bias[r] if rest[2] else value(0)
            sum_row(start, ahead(by_row, begin), ahead(places, begin), entries, 1, group, sums, width)
            copy_planes(y_picture, ahead(y, n * y_picture[0] + r * y_picture[1]), num, 1, sums, 0, False)


@register_jitable
def conv_both(numbers, part, value, index):
    """dx, and of the values' gradient what comes from some images."""
    _conv_backward(numbers, part, value, index, True)


@register_jitable
def conv_values(numbers, part, value, index):
    """Of the values' gradient what comes from some images."""
    _conv_backward(numbers, part, value, index, False)


@register_jitable
def _conv_backward(numbers, part, value, index, needs_input):
    x_picture, y_picture, dx_picture, rest = (
        ahead(numbers, 2),
        ahead(numbers, 17),
        ahead(numbers, 32),
        ahead(numbers, 47),
    )
    x, dy, dx = pointer(rest[0], value), pointer(rest[1], value), pointer(rest[2], value)
    col_starts, rows, taps = pointer(rest[3], types.int32), pointer(rest[4], index), pointer(rest[5], types.int32)
    values, num_rows, num_columns = pointer(rest[6], value), rest[7], rest[8]
    num_groups, num_channels, num_images, run = rest[9], rest[10], rest[11], rest[12]
    x_step, y_step, lead, room = rest[13], rest[14], rest[15], rest[16]
    planes = ahead(pointer(rest[17], value), part * room + lead)
    back = ahead(pointer(rest[18], value), part * room + lead)
    below = ahead(pointer(rest[19], value), part * num_rows * y_step)
    gradient = ahead(pointer(rest[20], value), part * types.intp(col_starts[num_columns]))
    rows_of_group, group_step = num_rows // num_groups, num_channels // num_groups * x_step

    fill_zeros(ahead(planes, -lead), room)
    fill_zeros(below, num_rows * y_step)
    last = num_images * (part + 1) // numbers[1]
    for n in range(num_images * part // numbers[1], last, x_picture[14]):
        num = min(x_picture[14], last - n)
        end_of_run = (num - 1) * plane_size(x_picture) + run
        width = (end_of_run + 15) // 16 * 16
        copy_planes(x_picture, ahead(x, n * x_picture[0]), num, num_channels, planes, x_step, True)
        copy_planes(y_picture, ahead(dy, n * y_picture[0]), num, num_rows, below, y_step, True)
        for r in range(num_rows):  # where there may still be an image of the block before
            fill_zeros(ahead(below, r * y_step + end_of_run), width - end_of_run)
        if needs_input:
            fill_zeros(ahead(back, -lead), room)
        for c in range(num_columns):
            begin, end = types.intp(col_starts[c]), types.intp(col_starts[c + 1])
            while begin < end:
                group = types.intp(rows[begin]) // rows_of_group
                stop = end if num_groups == 1 else _end_of_group(rows, begin, end, (group + 1) * rows_of_group)
                at = types.intp(taps[c]) + group * group_step
                own, here, into = ahead(rows, begin), ahead(planes, at), ahead(gradient, begin)
                if needs_input:
                    out = ahead(back, at)
                    both_gradients(ahead(values, begin), own, stop - begin, below, y_step, here, out, into, width)
                else:
                    values_gradient(own, stop - begin, below, y_step, here, into, width)
                begin = stop
        if needs_input:
            copy_planes(dx_picture, ahead(dx, n * dx_picture[0]), num, num_channels, back, x_step, False)


@register_jitable
def _end_of_group(rows, begin, end, next_group):
    while begin < end and types.intp(rows[begin]) < next_group:
        begin += 1
    return begin
