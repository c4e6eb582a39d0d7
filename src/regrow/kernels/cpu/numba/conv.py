"""Convolutions: every nonzero of the weight is one run of multiplications over all pixels of a few images.

Results at the margin of the planes mean nothing and are left out; gradients there are 0.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.order import first_of, put_in_row_order
from regrow.kernels.cpu.numba.planes import copy_planes, fill_zeros, plane_size
from regrow.kernels.cpu.numba.simd import ahead, is_given
from regrow.kernels.cpu.numba.sums import both_gradients, sum_row, values_gradient
from regrow.kernels.cpu.tables import ConvBackward, ConvForward, ConvOrder


@register_jitable
def conv_order(job: ConvOrder, part, num_parts, value):
    """Values in row order, and for each where its tap begins in the planes, for a range of rows."""
    row_starts, columns, num_rows = job.pattern.row_starts, job.pattern.columns, job.pattern.num_rows
    cursors = ahead(job.cursors, part * job.pattern.num_columns)
    r0 = first_of(part, num_parts, row_starts, num_rows)
    r1 = first_of(part + 1, num_parts, row_starts, num_rows)
    put_in_row_order(job.pattern, job.values, job.by_row, r0, r1, cursors)
    for i in range(types.intp(row_starts[r0]), types.intp(row_starts[r1])):
        job.places[i] = job.taps[types.intp(columns[i])]


@register_jitable
def conv_forward(job: ConvForward, part, num_parts, value):
    """y[image, row, pixel] = bias[row] + sum over the row's entries of value * x[image, tap, pixel], some images."""
    x_pictures, y_pictures, sizes = job.x_pictures, job.y_pictures, job.sizes
    row_starts, num_rows = job.pattern.row_starts, job.pattern.num_rows
    planes = ahead(job.planes, part * sizes.plane_memory + sizes.before)
    sums = ahead(job.sums, part * sizes.output_step)
    rows_of_group = num_rows // job.num_groups
    group_step = job.num_channels // job.num_groups * sizes.channel_step

    fill_zeros(ahead(planes, -sizes.before), sizes.plane_memory)
    last = job.num_images * (part + 1) // num_parts
    for n in range(job.num_images * part // num_parts, last, x_pictures.images_at_once):
        num = min(x_pictures.images_at_once, last - n)
        width = ((num - 1) * plane_size(x_pictures) + sizes.span + 15) // 16 * 16
        images = ahead(job.x, n * x_pictures.step_image)
        copy_planes(x_pictures, images, num, job.num_channels, planes, sizes.channel_step, True)
        for r in range(num_rows):
            begin = types.intp(row_starts[r])
            entries = types.intp(row_starts[r + 1]) - begin
            group = ahead(planes, r // rows_of_group * group_step)
            start = job.bias[r] if is_given(job.bias) else value(0)
            sum_row(start, ahead(job.by_row, begin), ahead(job.places, begin), entries, 1, group, sums, width)
            images = ahead(job.y, n * y_pictures.step_image + r * y_pictures.step_channel)
            copy_planes(y_pictures, images, num, 1, sums, 0, False)


@register_jitable
def conv_backward(job: ConvBackward, part, num_parts, value):
    """dx, if it is wanted, and of the values' gradient what comes from some images."""
    x_pictures, y_pictures, dx_pictures, sizes = job.x_pictures, job.y_pictures, job.dx_pictures, job.sizes
    col_starts, rows, num_rows = job.pattern.col_starts, job.pattern.rows, job.pattern.num_rows
    num_columns, channel_step, output_step = job.pattern.num_columns, sizes.channel_step, sizes.output_step
    planes = ahead(job.planes, part * sizes.plane_memory + sizes.before)
    back = ahead(job.back, part * sizes.plane_memory + sizes.before)
    below = ahead(job.below, part * num_rows * output_step)
    gradient = ahead(job.gradients, part * types.intp(col_starts[num_columns]))
    rows_of_group = num_rows // job.num_groups
    group_step = job.num_channels // job.num_groups * channel_step

    fill_zeros(ahead(planes, -sizes.before), sizes.plane_memory)
    fill_zeros(below, num_rows * output_step)
    last = job.num_images * (part + 1) // num_parts
    for n in range(job.num_images * part // num_parts, last, x_pictures.images_at_once):
        num = min(x_pictures.images_at_once, last - n)
        end_of_span = (num - 1) * plane_size(x_pictures) + sizes.span
        width = (end_of_span + 15) // 16 * 16
        images, their_below = ahead(job.x, n * x_pictures.step_image), ahead(job.dy, n * y_pictures.step_image)
        copy_planes(x_pictures, images, num, job.num_channels, planes, channel_step, True)
        copy_planes(y_pictures, their_below, num, num_rows, below, output_step, True)
        for r in range(num_rows):  # where there may still be an image of those before
            fill_zeros(ahead(below, r * output_step + end_of_span), width - end_of_span)
        if is_given(job.dx):
            fill_zeros(ahead(back, -sizes.before), sizes.plane_memory)
        for c in range(num_columns):
            begin, end = types.intp(col_starts[c]), types.intp(col_starts[c + 1])
            while begin < end:
                group = types.intp(rows[begin]) // rows_of_group
                stop = end if job.num_groups == 1 else _end_of_group(rows, begin, end, (group + 1) * rows_of_group)
                at = types.intp(job.taps[c]) + group * group_step
                own, here, into = ahead(rows, begin), ahead(planes, at), ahead(gradient, begin)
                if is_given(job.dx):
                    values, out = ahead(job.values, begin), ahead(back, at)
                    both_gradients(values, own, stop - begin, below, output_step, here, out, into, width)
                else:
                    values_gradient(own, stop - begin, below, output_step, here, into, width)
                begin = stop
        if is_given(job.dx):
            images = ahead(job.dx, n * dx_pictures.step_image)
            copy_planes(dx_pictures, images, num, job.num_channels, back, channel_step, False)


@register_jitable
def _end_of_group(rows, begin, end, next_group):
    while begin < end and types.intp(rows[begin]) < next_group:
        begin += 1
    return begin
