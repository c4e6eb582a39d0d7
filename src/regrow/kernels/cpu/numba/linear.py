"""Linear layers: y = x W' + b and its gradients, W sparse.

The batch is cut into tiles of a few dozen samples, laid out with the samples side by side: the tile that begins at
sample t and is w wide begins at t * num_channels, and channel c of it w * c later.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.order import first_at, first_of, put_in_row_order
from regrow.kernels.cpu.numba.planes import fill_zeros
from regrow.kernels.cpu.numba.simd import ahead, pointer, turn_square
from regrow.kernels.cpu.numba.sums import both_gradients, continue_row, sum_row, values_gradient

_CHUNK = 16  # channels turned at once: a cache line of float32


@register_jitable
def lay_out(numbers, part, value, index):
    """Turn a batch [sample, channel] into tiles [channel, sample]."""
    x, step_sample, step_channel, tiles = pointer(numbers[2], value), numbers[3], numbers[4], pointer(numbers[5], value)
    num_channels, num_samples, padded, tile, num_chunks = numbers[6], numbers[7], numbers[8], numbers[9], numbers[10]
    first, chunk = part // num_chunks * tile, part % num_chunks
    width, present = min(tile, padded - first), min(tile, num_samples - first)
    begin, end = chunk * num_channels // num_chunks, (chunk + 1) * num_channels // num_chunks
    source, target = ahead(x, first * step_sample), ahead(tiles, first * num_channels)
    _lay_out_tile(source, step_sample, step_channel, present, target, width, begin, end)


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
def linear_forward(numbers, part, value, index):
    """y[sample, row] = bias[row] + sum over the row's entries of value * x[sample, column], for a range of rows."""
    known = pointer(numbers[2], types.int64)
    row_starts, columns = pointer(known[0], types.int32), pointer(known[1], index)
    col_starts, rows = pointer(known[2], types.int32), pointer(known[3], index)
    num_rows, num_columns, num_samples, padded, tile = known[4], known[5], known[6], known[7], known[8]
    values, bias, y = pointer(numbers[3], value), pointer(numbers[4], value), pointer(numbers[5], value)
    room, x, step_sample, step_channel = numbers[6], pointer(numbers[7], value), numbers[8], numbers[9]
    block, at_once = known[9], known[10]
    tiles, by_row = pointer(room, value), pointer(room + known[11], value)
    sums = ahead(pointer(room + known[12], value), part * at_once * tile)
    cursors = ahead(pointer(room + known[13], types.int32), part * num_columns)
    reached = ahead(pointer(room + known[14], types.int32), part * at_once)

    r0 = first_of(part, numbers[1], row_starts, num_rows)
    r1 = first_of(part + 1, numbers[1], row_starts, num_rows)
    put_in_row_order(values, by_row, row_starts, columns, col_starts, rows, num_columns, r0, r1, cursors)
    for first in range(0, padded, tile):
        width, present = min(tile, padded - first), min(tile, num_samples - first)
        here = tiles if numbers[1] == 1 else ahead(tiles, first * num_columns)
        if numbers[1] == 1:  # nobody did it before: one thread needs no second start for it, and room for one tile
            source = ahead(x, first * step_sample)
            _lay_out_tile(source, step_sample, step_channel, present, here, width, 0, num_columns)
        for chunk in range(r0, r1, at_once):
            end = min(chunk + at_once, r1)
            for first_column in range(0, max(num_columns, 1), block):
                for r in range(chunk, end):
                    begin = types.intp(row_starts[r] if first_column == 0 else reached[r - chunk])
                    stop = types.intp(row_starts[r + 1])
                    if first_column + block < num_columns:
                        stop = first_at(first_column + block, columns, begin, stop)
                        reached[r - chunk] = stop
                    own, at, into = ahead(by_row, begin), ahead(columns, begin), ahead(sums, (r - chunk) * width)
                    if first_column == 0:
                        start = bias[r] if numbers[4] else value(0)
                        sum_row(start, own, at, stop - begin, width, here, into, width)
                    else:
                        continue_row(own, at, stop - begin, width, here, into, width)
            _turn(sums, width, 1, ahead(y, first * num_rows + chunk), num_rows, end - chunk, present)


@register_jitable
def linear_both(numbers, part, value, index):
    """dx[sample, column] and the gradient of the values, for a range of columns."""
    _linear_backward(numbers, part, value, index, True)


@register_jitable
def linear_values(numbers, part, value, index):
    """The gradient of the values alone, for a range of columns."""
    _linear_backward(numbers, part, value, index, False)


@register_jitable
def _linear_backward(numbers, part, value, index, needs_input):
    known = pointer(numbers[2], types.int64)
    col_starts, rows = pointer(known[0], types.int32), pointer(known[1], index)
    num_rows, num_columns, num_samples, padded, tile = known[2], known[3], known[4], known[5], known[6]
    values, gradient = pointer(numbers[3], value), pointer(numbers[4], value)
    x, step_sample, step_channel = pointer(numbers[5], value), numbers[6], numbers[7]
    tiles, dx = pointer(numbers[8], value), pointer(numbers[9], value)
    dy, step_below, step_row = pointer(numbers[10], value), numbers[11], numbers[12]
    block, at_once = known[7], known[8]
    here = ahead(pointer(numbers[8] + known[9], value), part * 2 * at_once * tile)
    back = ahead(here, at_once * tile)
    reached = ahead(pointer(numbers[8] + known[10], types.int32), part * at_once)

    c0 = first_of(part, numbers[1], col_starts, num_columns)
    c1 = first_of(part + 1, numbers[1], col_starts, num_columns)
    for first in range(0, padded, tile):
        width, present = min(tile, padded - first), min(tile, num_samples - first)
        below = tiles if numbers[1] == 1 else ahead(tiles, first * num_rows)
        if numbers[1] == 1:
            _lay_out_tile(ahead(dy, first * step_below), step_below, step_row, present, below, width, 0, num_rows)
        for chunk in range(c0, c1, at_once):
            num_channels = min(at_once, c1 - chunk)
            source = ahead(x, first * step_sample + chunk * step_channel)
            _lay_out_tile(source, step_sample, step_channel, present, here, width, 0, num_channels)
            if needs_input:
                fill_zeros(back, num_channels * width)
            for first_row in range(0, num_rows, block):
                for i in range(num_channels):
                    begin = types.intp(col_starts[chunk + i] if first_row == 0 else reached[i])
                    stop = types.intp(col_starts[chunk + i + 1])
                    if first_row + block < num_rows:
                        stop = first_at(first_row + block, rows, begin, stop)
                        reached[i] = stop
                    at, into, own = ahead(rows, begin), ahead(gradient, begin), ahead(here, i * width)
                    if needs_input:
                        out = ahead(back, i * width)
                        both_gradients(ahead(values, begin), at, stop - begin, below, width, own, out, into, width)
                    else:
                        values_gradient(at, stop - begin, below, width, own, into, width)
            if needs_input:
                _turn(back, width, 1, ahead(dx, first * num_columns + chunk), num_columns, num_channels, present)
