"""The inner loops of all sparse products: each handles entries of one row or of one column of a weight matrix.

Inputs lie with samples (or pixels) side by side, so that one entry of the matrix means one run of multiplications.
"""

from numba import types
from numba.extending import register_jitable

from regrow.kernels.cpu.numba.simd import ahead, fma, load, splat, store, total, zeros


@register_jitable
def add_row(acc, values, places, num, step, x):
    """acc + sum over a row's entries of value * x[place * step ...], in as many lanes as acc has."""
    for i in range(num):
        acc = fma(values[i], load(acc, x, types.intp(places[i]) * step), acc)
    return acc


@register_jitable
def sum_row(start, values, places, num, step, x, y, width):
    """y[lane] = start + sum over a row's entries of value * x[place * step + lane]; width is a multiple of 16."""
    lane = 0
    while lane + 64 <= width:
        store(add_row(splat(start, 64), values, places, num, step, ahead(x, lane)), y, lane)
        lane += 64
    if lane + 32 <= width:
        store(add_row(splat(start, 32), values, places, num, step, ahead(x, lane)), y, lane)
        lane += 32
    if lane < width:
        store(add_row(splat(start, 16), values, places, num, step, ahead(x, lane)), y, lane)


@register_jitable
def continue_row(values, places, num, step, x, y, width):
    """y[lane] + the sum over further entries of the row, likewise."""
    lane = 0
    while lane + 64 <= width:
        store(add_row(load(zeros(y, 64), y, lane), values, places, num, step, ahead(x, lane)), y, lane)
        lane += 64
    if lane + 32 <= width:
        store(add_row(load(zeros(y, 32), y, lane), values, places, num, step, ahead(x, lane)), y, lane)
        lane += 32
    if lane < width:
        store(add_row(load(zeros(y, 16), y, lane), values, places, num, step, ahead(x, lane)), y, lane)


@register_jitable
def both_gradients(values, rows, num, dy, step, x, dx, gradient, width):
    """For entries of one column: dx += value * dy[row], gradient += <x, dy[row]>; each load of dy serves both."""
    none = zeros(x, 16)
    fours = num - num % 4
    for i in range(0, fours, 4):
        v0, v1, v2, v3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        at0, at1 = types.intp(rows[i]) * step, types.intp(rows[i + 1]) * step
        at2, at3 = types.intp(rows[i + 2]) * step, types.intp(rows[i + 3]) * step
        s0 = s1 = s2 = s3 = none
        for lane in range(0, width, 16):
            here, d = load(none, x, lane), load(none, dx, lane)
            y0, y1 = load(none, dy, at0 + lane), load(none, dy, at1 + lane)
            d, s0 = fma(v0, y0, d), fma(here, y0, s0)
            d, s1 = fma(v1, y1, d), fma(here, y1, s1)
            y2, y3 = load(none, dy, at2 + lane), load(none, dy, at3 + lane)
            d, s2 = fma(v2, y2, d), fma(here, y2, s2)
            d, s3 = fma(v3, y3, d), fma(here, y3, s3)
            store(d, dx, lane)
        gradient[i] += total(s0)
        gradient[i + 1] += total(s1)
        gradient[i + 2] += total(s2)
        gradient[i + 3] += total(s3)
    for i in range(fours, num):
        v0, at0, s0 = values[i], types.intp(rows[i]) * step, none
        for lane in range(0, width, 16):
            y0 = load(none, dy, at0 + lane)
            store(fma(v0, y0, load(none, dx, lane)), dx, lane)
            s0 = fma(load(none, x, lane), y0, s0)
        gradient[i] += total(s0)


@register_jitable
def values_gradient(rows, num, dy, step, x, gradient, width):
    """For entries of one column: gradient += <x, dy[row]>, where nobody wants dx."""
    none = zeros(x, 16)
    fours = num - num % 4
    for i in range(0, fours, 4):
        at0, at1 = types.intp(rows[i]) * step, types.intp(rows[i + 1]) * step
        at2, at3 = types.intp(rows[i + 2]) * step, types.intp(rows[i + 3]) * step
        s0 = s1 = s2 = s3 = none
        for lane in range(0, width, 16):
            here = load(none, x, lane)
            s0, s1 = fma(here, load(none, dy, at0 + lane), s0), fma(here, load(none, dy, at1 + lane), s1)
            s2, s3 = fma(here, load(none, dy, at2 + lane), s2), fma(here, load(none, dy, at3 + lane), s3)
        gradient[i] += total(s0)
        gradient[i + 1] += total(s1)
        gradient[i + 2] += total(s2)
        gradient[i + 3] += total(s3)
    for i in range(fours, num):
        at0, s0 = types.intp(rows[i]) * step, none
        for lane in range(0, width, 16):
            s0 = fma(load(none, x, lane), load(none, dy, at0 + lane), s0)
        gradient[i] += total(s0)
