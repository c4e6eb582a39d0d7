"""Batch normalisation of a batch [samples, channels], with or without ReLU.

Three numbers of each channel are kept for the way back: mean, 1 / deviation and factor. Sums of 64 samples are added up
in double precision, as differences from the first sample: a channel that is the same in all of them, because nothing
reaches it, has that very mean, and gives its bias exactly. `floor` is 0 for ReLU, else -inf.
"""

from math import sqrt

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.linear import linear_both, linear_forward, linear_values
from regrow.kernels.cpu.numba.planes import fill_zeros
from regrow.kernels.cpu.numba.simd import ahead, pointer

_SAMPLES = 64
_FIRST_JOB = 3


@register_jitable
def norm_forward(numbers, part, value, index):
    """y = max(floor, (h - mean) * factor + bias) for some channels; running means move towards those of the batch."""
    known = pointer(numbers[2], types.int64)
    num_samples, step, settings = known[0], known[1], pointer(known[2], types.float64)
    epsilon, momentum, floor = settings[0], settings[1], value(settings[2])
    begin = part * step // numbers[1]
    num = (part + 1) * step // numbers[1] - begin
    h, y = ahead(pointer(numbers[3], value), begin), ahead(pointer(numbers[4], value), begin)
    weight, bias = ahead(pointer(numbers[5], value), begin), ahead(pointer(numbers[6], value), begin)
    far_mean, far_variance = ahead(pointer(numbers[7], value), begin), ahead(pointer(numbers[8], value), begin)
    mean = ahead(h, num_samples * step)
    scale, factor, some = ahead(mean, step), ahead(mean, 2 * step), ahead(mean, 3 * step)
    total = ahead(pointer(numbers[10], types.float64), begin)

    if part == 0:
        pointer(numbers[9], types.int64)[0] += 1
    _sum(h, h, False, num_samples, step, num, some, total)
    for c in range(num):
        exact = h[c] + total[c] / num_samples
        mean[c] = value(exact)
        far_mean[c] = value((1 - momentum) * far_mean[c] + momentum * exact)
    _sum(h, mean, True, num_samples, step, num, some, total)
    for c in range(num):
        far_variance[c] = value((1 - momentum) * far_variance[c] + momentum * (total[c] / (num_samples - 1)))
        deviation = sqrt(total[c] / num_samples + epsilon)
        scale[c] = value(1 / deviation)
        factor[c] = value(weight[c] / deviation)
    for s in range(num_samples):
        line, out = ahead(h, s * step), ahead(y, s * step)
        for c in range(num):
            result = (line[c] - mean[c]) * factor[c] + bias[c]
            out[c] = floor if result < floor else result


@register_jitable
def norm_backward(numbers, part, value, index):
    """From dy: dh, and the gradients of weight and bias, for some channels."""
    known = pointer(numbers[2], types.int64)
    num_samples, step, floor = known[0], known[1], value(pointer(known[2], types.float64)[2])
    begin = part * step // numbers[1]
    num = (part + 1) * step // numbers[1] - begin
    h, dy = ahead(pointer(numbers[3], value), begin), ahead(pointer(numbers[4], value), begin)
    dh = ahead(pointer(numbers[5], value), begin)
    dweight, dbias = ahead(pointer(numbers[6], value), begin), ahead(pointer(numbers[7], value), begin)
    bias, mean = ahead(pointer(numbers[8], value), begin), ahead(h, num_samples * step)
    scale, factor = ahead(mean, step), ahead(mean, 2 * step)
    total = ahead(pointer(numbers[9], types.float64), begin)
    total_slope = ahead(total, step)
    some = ahead(pointer(numbers[9] + 16 * step, value), begin)  # not where the way forth had its own: others may
    slopes = ahead(some, step)  # come back, too

    fill_zeros(total, num)
    fill_zeros(total_slope, num)
    for first in range(0, num_samples, _SAMPLES):
        fill_zeros(some, num)
        fill_zeros(slopes, num)
        for s in range(first, min(first + _SAMPLES, num_samples)):
            line, below, out = ahead(h, s * step), ahead(dy, s * step), ahead(dh, s * step)
            for c in range(num):
                off = line[c] - mean[c]
                passed = value(0) if off * factor[c] + bias[c] <= floor else below[c]
                out[c] = passed
                some[c] += passed
                slopes[c] += passed * off
        _add(some, total, num)
        _add(slopes, total_slope, num)
    for c in range(num):
        dbias[c] = value(total[c])
        dweight[c] = value(total_slope[c] * scale[c])
        some[c] = value(total[c] / num_samples)
        slopes[c] = value(total_slope[c] * scale[c] * scale[c] / num_samples)
    for s in range(num_samples):
        line, out = ahead(h, s * step), ahead(dh, s * step)
        for c in range(num):
            out[c] = (out[c] - some[c] - (line[c] - mean[c]) * slopes[c]) * factor[c]


@register_jitable
def block_forward(numbers, part, value, index):
    """A linear layer, then its norm, by one thread: two jobs one after the other, the second from numbers[2] on."""
    linear_forward(ahead(numbers, _FIRST_JOB), part, value, index)
    norm_forward(ahead(numbers, numbers[2]), part, value, index)


@register_jitable
def block_values(numbers, part, value, index):
    """The way back, without dx: the second job first."""
    norm_backward(ahead(numbers, numbers[2]), part, value, index)
    linear_values(ahead(numbers, _FIRST_JOB), part, value, index)


@register_jitable
def block_both(numbers, part, value, index):
    """Likewise, with dx."""
    norm_backward(ahead(numbers, numbers[2]), part, value, index)
    linear_both(ahead(numbers, _FIRST_JOB), part, value, index)


@register_jitable
def _sum(h, base, squares, num_samples, step, num, some, total):
    """total = the sum over all samples of h - base, or of its square."""
    fill_zeros(total, num)
    for first in range(0, num_samples, _SAMPLES):
        fill_zeros(some, num)
        for s in range(first, min(first + _SAMPLES, num_samples)):
            line = ahead(h, s * step)
            for c in range(num):
                off = line[c] - base[c]
                some[c] += off * off if squares else off
        _add(some, total, num)


@register_jitable
def _add(source, target, num):
    for c in range(num):
        target[c] += source[c]
