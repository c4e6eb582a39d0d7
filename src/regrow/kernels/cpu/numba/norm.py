"""Batch normalisation of a batch [samples, channels], with or without ReLU.

Three numbers of each channel are kept for the way back: mean, 1 / deviation and factor. Sums of 64 samples are added up
in double precision, as differences from the first sample: a channel that is the same in all of them, because nothing
reaches it, has that very mean, and gives its bias exactly. `floor` is 0 for ReLU, else -inf.
"""

from math import sqrt

from numba.extending import register_jitable

from regrow.kernels.cpu.numba.linear import linear_backward, linear_forward
from regrow.kernels.cpu.numba.planes import fill_zeros
from regrow.kernels.cpu.numba.simd import ahead, pointer
from regrow.kernels.cpu.tables import BlockBackward, BlockForward, NormBackward, NormForward

_SAMPLES = 64


@register_jitable
def norm_forward(job: NormForward, part, num_parts, value):
    """y = max(floor, (h - mean) * factor + bias) for some channels; running means move towards those of the batch."""
    plan = job.plan
    num_samples, step, momentum, floor = plan.num_samples, plan.num_channels, plan.momentum, value(plan.floor)
    begin, num = _channels_of(part, num_parts, step)
    h, y = ahead(job.h, begin), ahead(job.y, begin)
    weight, bias = ahead(plan.weight, begin), ahead(plan.bias, begin)
    running_mean, running_variance = ahead(plan.running_mean, begin), ahead(plan.running_variance, begin)
    mean = ahead(h, num_samples * step)
    scale, factor, some = ahead(mean, step), ahead(mean, 2 * step), ahead(mean, 3 * step)
    total = ahead(job.sums, begin)

    if part == 0:
        plan.num_batches[0] += 1
    _sum(h, h, False, num_samples, step, num, some, total)
    for c in range(num):
        exact = h[c] + total[c] / num_samples
        mean[c] = value(exact)
        running_mean[c] = value((1 - momentum) * running_mean[c] + momentum * exact)
    _sum(h, mean, True, num_samples, step, num, some, total)
    for c in range(num):
        variance = total[c] / (num_samples - 1)
        running_variance[c] = value((1 - momentum) * running_variance[c] + momentum * variance)
        deviation = sqrt(total[c] / num_samples + plan.epsilon)
        scale[c] = value(1 / deviation)
        factor[c] = value(weight[c] / deviation)
    for s in range(num_samples):
        line, out = ahead(h, s * step), ahead(y, s * step)
        for c in range(num):
            result = (line[c] - mean[c]) * factor[c] + bias[c]
            out[c] = floor if result < floor else result


@register_jitable
def norm_backward(job: NormBackward, part, num_parts, value):
    """From dy: dh, and the gradients of weight and bias, for some channels."""
    plan = job.plan
    num_samples, step, floor = plan.num_samples, plan.num_channels, value(plan.floor)
    begin, num = _channels_of(part, num_parts, step)
    h, dy, dh = ahead(job.h, begin), ahead(job.dy, begin), ahead(job.dh, begin)
    dweight, dbias, bias = ahead(job.dweight, begin), ahead(job.dbias, begin), ahead(job.bias, begin)
    mean = ahead(h, num_samples * step)
    scale, factor = ahead(mean, step), ahead(mean, 2 * step)
    total = ahead(job.sums, begin)
    total_slope = ahead(total, step)
    some = ahead(pointer(ahead(job.sums, 2 * step), value), begin)  # not where the way forth had its own: others may
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
def block_forward(job: BlockForward, part, num_parts, value):
    """A linear layer, then its norm, by one thread."""
    linear_forward(job.layer, part, num_parts, value)
    norm_forward(job.norm, part, num_parts, value)


@register_jitable
def block_backward(job: BlockBackward, part, num_parts, value):
    """The way back."""
    norm_backward(job.norm, part, num_parts, value)
    linear_backward(job.layer, part, num_parts, value)


@register_jitable
def _channels_of(part, num_parts, num_channels):
    """The first channel of a part, and how many there are."""
    begin = part * num_channels // num_parts
    return begin, (part + 1) * num_channels // num_parts - begin


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
