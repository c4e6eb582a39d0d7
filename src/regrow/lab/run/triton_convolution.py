"""The gradient of a convolution's weights on a GPU. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def sum_parts(
    images,
    slopes,
    sums,
    num_pixels,
    EACH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    NUM_IN: tl.constexpr,
    NUM_OUT: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Program (p, r, c) adds up part p of the pixels for row r of a kernel of SIZE x SIZE and block c of its columns.

    A column is one of the places in a row and a channel: with the channels innermost they lie side by side in memory,
    so that one product of matrices does the whole row.
    """
    part, row = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    place = column // NUM_IN
    out = tl.arange(0, NUM_OUT)
    total = tl.zeros([COLUMNS, NUM_OUT], dtype=tl.float32)
    for block in range(EACH):
        pixel = (part * EACH + block) * PIXELS + tl.arange(0, PIXELS)
        y = pixel // OUT_WIDTH % OUT_HEIGHT * STRIDE + row - SIZE // 2
        first_x = pixel % OUT_WIDTH * STRIDE - SIZE // 2
        first = (pixel // (OUT_WIDTH * OUT_HEIGHT) * HEIGHT + y) * WIDTH + first_x
        x = first_x[:, None] + place[None, :]
        is_real = pixel < num_pixels
        is_inside = (is_real & (y >= 0) & (y < HEIGHT))[:, None] & (x >= 0) & (x < WIDTH) & (place < SIZE)[None, :]
        seen = tl.load(images + first[:, None] * NUM_IN + column[None, :], mask=is_inside, other=0.0)
        slope = tl.load(slopes + pixel[:, None] * NUM_OUT + out[None, :], mask=is_real[:, None], other=0.0)
        total = tl.dot(tl.trans(seen), slope, total)
    at = ((part * SIZE + row) * SIZE * NUM_IN + column)[:, None] * NUM_OUT + out[None, :]
    tl.store(sums + at, total, mask=(place < SIZE)[:, None])


@triton.jit
def add_parts(
    sums, gradient, num_parts, COLUMNS: tl.constexpr, NUM_OUT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Program b adds up the parts of block b of the weights, always in the same order."""
    weight = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    is_one = weight < COLUMNS * NUM_OUT
    each = tl.load(
        sums + part[:, None] * (COLUMNS * NUM_OUT) + weight[None, :],
        mask=(part < num_parts)[:, None] & is_one[None, :],
        other=0.0,
    )
    to = weight % NUM_OUT * COLUMNS + weight // NUM_OUT
    tl.store(gradient + to, tl.sum(each, axis=0).to(gradient.dtype.element_ty), mask=is_one)
