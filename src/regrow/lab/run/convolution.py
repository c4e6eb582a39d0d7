"""The gradient of a convolution's weights, for kernels of 3x3 or 1x1 and 16-bit images with the channels innermost.

Of cuDNN's kernels those that always add up in the same order are slow where there are many pixels and few channels.
Ours cuts the pixels into parts, adds up each, then the parts, always the same ones in the same order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.kernels.gpu import on

CHANNELS_IN = (3, 16, 32, 64)
CHANNELS_OUT = (16, 32, 64, 128)
"""Numbers of channels of layers of WRN-28-2 for which it is faster than cuDNN (benchmarks/weight_gradient.py)."""
_PIXELS = 64
_MOST_COLUMNS = 128
_BLOCK = 32


@dataclass(frozen=True)
class Plan:
    """How the work is cut: pixels into parts of whole blocks, the rows of kernels into blocks of columns."""

    blocks_per_part: int
    num_parts: int
    columns: int


def plan(num_in: int, num_pixels: int, size: int) -> Plan:
    """As was measured to be fast on an H200: enough parts to keep it busy, few enough to add them up quickly.

    >>> plan(32, num_pixels=102_400, size=3)
    Plan(blocks_per_part=19, num_parts=85, columns=128)
    """
    columns = max(16, 1 << (size * num_in - 1).bit_length())
    if columns > _MOST_COLUMNS:
        columns = num_in
    num_programs = size * -(-size * num_in // columns)  # for each part
    wanted = {1: 264, 3: 88, 9: 44}[num_programs] * (2 if num_in < 16 else 1)
    num_blocks = -(-num_pixels // _PIXELS)
    each = -(-num_blocks // wanted)
    return Plan(each, -(-num_blocks // each), columns)


@torch.library.custom_op("regrow::weight_gradient", mutates_args=())
def weight_gradient(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    """Out of the gradient of the output, `slopes`, and the input: on a GPU by our kernels, elsewhere by torch's."""
    weight, around = images.new_empty(_shape(slopes, images, size)), [size // 2, size // 2]
    made: Tensor = torch.ops.aten.convolution_backward(
        slopes, images, weight, None, [stride, stride], around, [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return _new_gradient(slopes, images, size).copy_(made)


@weight_gradient.register_fake
def _(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    return _new_gradient(slopes, images, size)


@weight_gradient.register_kernel("cuda")
def by_our_kernels(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    """Two launches: the sums of the parts, and the sum of those."""
    from regrow.lab.run import triton_convolution as kernels  # here, because not every machine has Triton

    slopes, images = (each.contiguous(memory_format=torch.channels_last) for each in (slopes, images))
    (num_images, num_in, height, width), (_, num_out, out_height, out_width) = images.shape, slopes.shape
    num_pixels, num_columns = num_images * out_height * out_width, size * size * num_in
    how = plan(num_in, num_pixels, size)
    sums = images.new_empty((how.num_parts, num_columns, num_out), dtype=torch.float32)
    gradient = _new_gradient(slopes, images, size)
    with on(images.device):
        kernels.sum_parts[how.num_parts, size, -(-size * num_in // how.columns)](
            images,
            slopes,
            sums,
            num_pixels,
            EACH=how.blocks_per_part,
            HEIGHT=height,
            WIDTH=width,
            OUT_HEIGHT=out_height,
            OUT_WIDTH=out_width,
            STRIDE=stride,
            SIZE=size,
            NUM_IN=num_in,
            NUM_OUT=num_out,
            COLUMNS=how.columns,
            PIXELS=_PIXELS,
        )
        kernels.add_parts[(-(-num_columns * num_out // _BLOCK),)](
            sums,
            gradient,
            how.num_parts,
            COLUMNS=num_columns,
            NUM_OUT=num_out,
            PARTS=1 << (how.num_parts - 1).bit_length(),
            BLOCK=_BLOCK,
        )
    return gradient


def _new_gradient(slopes: Tensor, images: Tensor, size: int) -> Tensor:
    shape = _shape(slopes, images, size)
    return torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)


def _shape(slopes: Tensor, images: Tensor, size: int) -> tuple[int, ...]:
    return (slopes.shape[1], images.shape[1], size, size)
