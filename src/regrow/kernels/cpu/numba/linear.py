"""Linear layers: y = x W' + b and its gradients, W sparse.

The batch is cut into tiles of a few dozen samples, laid out with the samples side by side: the tile that begins at
sample t and is w wide begins at t * num_channels, and channel c of it w * c later.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.order import first_at, first_of, put_in_row_order
from regrow.kernels.cpu.numba.planes import fill_zeros
from regrow.kernels.cpu.numba.simd import ahead, fma, is_given, load, pointer, splat, store, turn_square, zeros
from regrow.kernels.cpu.numba.sums import both_gradients, continue_row, sum_row, values_gradient
from regrow.kernels.cpu.tables import LayOut, LinearBackward, LinearForward, VectorForward

_CHUNK = 16  # channels turned at once: a cache line of float32


@register_jitable
def lay_out(job: LayOut, part, num_parts, value):
    """Turn a batch [sample, channel] into tiles [channel, sample]."""
    num_chunks, num_channels = job.num_chunks, job.num_channels
    first, chunk = part // num_chunks * job.tile, part % num_chunks
    width, present = min(job.tile, job.num_padded - first), min(job.tile, job.num_samples - first)
    begin, end = chunk * num_channels // num_chunks, (chunk + 1) * num_channels // num_chunks
    source, target = ahead(job.x, first * job.step_sample), ahead(job.tiles, first * num_channels)
    _lay_out_tile(source, job.step_sample, job.step_channel, present, target, width, begin, end)


@register_jitable
def _lay_out_tile(source, step_sample, step_channel, present, target, width, begin, end):
    """Some channels of one tile."""
    for c in range(begin, end, _CHUNK):
        from_, to = ahead(source, c * step_channel), ahead(target, c * width)
        _turn_in(from_, step_sample, step_channel, present, to, width, min(_CHUNK, end - c))


@register_jitable
def _turn_in(source, step_sample, step_channel, present, target, width, num_channels):
    """[sample, channel] -> [channel, sample], with zeros for the samples that are missing."""
    _turn(source, step_sample, step_channel, target, width, present, num_channels)
    for c in range(num_channels):
        for b in range(present, width):
            target[c * width + b] = 0


@register_jitable
def _turn(source, step_i, step_j, target, step, num_i, num_j):
    """target[j, i] = source[i, j], in squares of 8 x 8; the last ones overlap those before where they must."""
    if step_j == 1 and num_i >= 8 and num_j >= 8:
        for i in range(0, num_i, 8):
            begin_i = min(i, num_i - 8)
            for j in range(0, num_j, 8):
                begin_j = min(j, num_j - 8)
                from_, to = ahead(source, begin_i * step_i + begin_j), ahead(target, begin_j * step + begin_i)
                turn_square(from_, step_i, to, step)
    else:
        for j in range(num_j):
            for i in range(num_i):
                target[j * step + i] = source[i * step_i + j * step_j]


@register_jitable
def _turn_out(source, step_i, target, step, num_i, num_j):
    """The same, line after line of the target: these often lie so far apart that few fit into the first cache."""
    if num_i >= 8 and num_j >= 8:
        for j in range(0, num_j, 8):
            begin_j = min(j, num_j - 8)
            for i in range(0, num_i, 8):
                begin_i = min(i, num_i - 8)
                from_, to = ahead(source, begin_i * step_i + begin_j), ahead(target, begin_j * step + begin_i)
                turn_square(from_, step_i, to, step)
    else:
        for j in range(num_j):
            for i in range(num_i):
                target[j * step + i] = source[i * step_i + j]


@register_jitable
def linear_forward(job: LinearForward, part, num_parts, value):
    """y[sample, row] = bias[row] + sum over the row's entries of value * x[sample, column], for a range of rows."""
    plan, pattern = job.plan, job.plan.pattern
    row_starts, columns = pattern.row_starts, pattern.columns
    num_rows, num_columns = pattern.num_rows, pattern.num_columns
    rows_at_once, columns_at_once, tile = plan.tiles.rows_at_once, plan.tiles.columns_at_once, plan.tiles.tile
    num_samples, num_padded = plan.tiles.num_samples, plan.tiles.num_padded
    tiles, by_row = pointer(job.scratch, value), pointer(job.scratch + plan.by_row_at, value)
    sums = ahead(pointer(job.scratch + plan.sums_at, value), part * rows_at_once * tile)
    cursors = ahead(pointer(job.scratch + plan.cursors_at, types.int32), part * num_columns)
    reached = ahead(pointer(job.scratch + plan.reached_at, types.int32), part * rows_at_once)

    r0 = first_of(part, num_parts, row_starts, num_rows)
    r1 = first_of(part + 1, num_parts, row_starts, num_rows)
    put_in_row_order(pattern, job.values, by_row, r0, r1, cursors)
    for first in range(0, num_padded, tile):
        width, present = min(tile, num_padded - first), min(tile, num_samples - first)
        here = tiles if num_parts == 1 else ahead(tiles, first * num_columns)
        if num_parts == 1:  # nobody did it before: one thread needs no second start for it, and memory for one tile
            source = ahead(job.x, first * job.step_sample)
            _lay_out_tile(source, job.step_sample, job.step_channel, present, here, width, 0, num_columns)
        for chunk in range(r0, r1, rows_at_once):
            end = min(chunk + rows_at_once, r1)
            for first_column in range(0, max(num_columns, 1), columns_at_once):
                for r in range(chunk, end):
                    begin = types.intp(row_starts[r] if first_column == 0 else reached[r - chunk])
                    stop = types.intp(row_starts[r + 1])
                    if first_column + columns_at_once < num_columns:
                        stop = first_at(first_column + columns_at_once, columns, begin, stop)
                        reached[r - chunk] = stop
                    own, at, into = ahead(by_row, begin), ahead(columns, begin), ahead(sums, (r - chunk) * width)
                    if first_column == 0:
                        start = job.bias[r] if is_given(job.bias) else value(0)
                        sum_row(start, own, at, stop - begin, width, here, into, width)
                    else:
                        continue_row(own, at, stop - begin, width, here, into, width)
            _turn_out(sums, width, ahead(job.y, first * num_rows + chunk), num_rows, end - chunk, present)


@register_jitable
def vector_forward(job: VectorForward, part, num_parts, value):
    """y[row] = bias[row] + sum over the row's entries of value * x[column], for a range of rows and one sample.

    Column after column, as values lie: each row is summed in the same order as in a batch, so the bits are the same.
    """
    pattern, y = job.pattern, job.y
    rows, col_starts, one = pattern.rows, pattern.col_starts, zeros(y, 1)
    r0 = first_of(part, num_parts, pattern.row_starts, pattern.num_rows)
    r1 = first_of(part + 1, num_parts, pattern.row_starts, pattern.num_rows)
    for r in range(r0, r1):
        y[r] = job.bias[r] if is_given(job.bias) else value(0)
    for c in range(pattern.num_columns):
        begin, stop = types.intp(col_starts[c]), types.intp(col_starts[c + 1])
        if num_parts > 1:
            begin = first_at(r0, rows, begin, stop)
            stop = first_at(r1, rows, begin, stop)
        x = splat(job.x[c * job.step_channel], 1)
        for i in range(begin, stop):
            r = types.intp(rows[i])
            store(fma(job.values[i], x, load(one, y, r)), y, r)


@register_jitable
def linear_backward(job: LinearBackward, part, num_parts, value):
    """dx[sample, column], if it is wanted, and the gradient of the values, for a range of columns."""
    plan, pattern = job.plan, job.plan.pattern
    col_starts, rows, num_rows, num_columns = pattern.col_starts, pattern.rows, pattern.num_rows, pattern.num_columns
    rows_at_once, columns_at_once, tile = plan.tiles.rows_at_once, plan.tiles.columns_at_once, plan.tiles.tile
    num_samples, num_padded = plan.tiles.num_samples, plan.tiles.num_padded
    tiles = pointer(job.scratch, value)
    here = ahead(pointer(job.scratch + plan.own_at, value), part * 2 * columns_at_once * tile)
    back = ahead(here, columns_at_once * tile)
    reached = ahead(pointer(job.scratch + plan.reached_at, types.int32), part * columns_at_once)

    c0 = first_of(part, num_parts, col_starts, num_columns)
    c1 = first_of(part + 1, num_parts, col_starts, num_columns)
    for first in range(0, num_padded, tile):
        width, present = min(tile, num_padded - first), min(tile, num_samples - first)
        below = tiles if num_parts == 1 else ahead(tiles, first * num_rows)
        if num_parts == 1:
            source = ahead(job.dy, first * job.step_below)
            _lay_out_tile(source, job.step_below, job.step_row, present, below, width, 0, num_rows)
        for chunk in range(c0, c1, columns_at_once):
            num_channels = min(columns_at_once, c1 - chunk)
            source = ahead(job.x, first * job.step_sample + chunk * job.step_channel)
            _lay_out_tile(source, job.step_sample, job.step_channel, present, here, width, 0, num_channels)
            if is_given(job.dx):
                fill_zeros(back, num_channels * width)
            for first_row in range(0, num_rows, rows_at_once):
                for i in range(num_channels):
                    begin = types.intp(col_starts[chunk + i] if first_row == 0 else reached[i])
                    stop = types.intp(col_starts[chunk + i + 1])
                    if first_row + rows_at_once < num_rows:
                        stop = first_at(first_row + rows_at_once, rows, begin, stop)
                        reached[i] = stop
                    at, into, own = ahead(rows, begin), ahead(job.gradient, begin), ahead(here, i * width)
                    if is_given(job.dx):
                        values, out = ahead(job.values, begin), ahead(back, i * width)
                        both_gradients(values, at, stop - begin, below, width, own, out, into, width)
                    else:
                        values_gradient(at, stop - begin, below, width, own, into, width)
            if is_given(job.dx):
                _turn_out(back, width, ahead(job.dx, first * num_columns + chunk), num_columns, num_channels, present)
