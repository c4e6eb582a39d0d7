"""How the pictures of a convolution lie in planes: sizes, margins, and where each tap of the kernel begins.

Along one dimension output o reads, with tap j, the input at o * stride + j * dilation - padding. Writing
j * dilation - padding = shift * stride + phase, that is place o + shift of the plane that holds every stride-th pixel
beginning with number `phase`.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.cpu.tables import Pictures, PlaneSizes, filler

_pictures = filler(Pictures)
_SIDE_BY_SIDE = 512  # pixels in a run that are enough to forget its beginning and end
_LANES, _WIDEST = 16, 64


@dataclass(frozen=True)
class Convolution:
    """What a convolution layer says of itself, one number per dimension of the pictures."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def output_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        along = list(zip(size, self.kernel_size, self.stride, self.padding, self.dilation, strict=True))
        room = [n + 2 * p - d * (k - 1) - 1 for n, k, _, p, d in along]
        if min(room) < 0:
            raise RuntimeError(
                f"images of {tuple(size)} pixels are smaller than the kernel {self.kernel_size}; pad them"
            )
        return tuple(left // stride + 1 for left, stride in zip(room, self.stride, strict=True))


class Planes(NamedTuple):
    """How one thread keeps some images in planes."""

    size: tuple[int, ...]  # of a plane, margin included, along three dimensions
    stride: tuple[int, ...]
    images_at_once: int  # side by side
    sizes: PlaneSizes
    taps: Tensor

    def inputs(self, x: Tensor) -> Pictures:
        """A batch of inputs, or of their gradients."""
        return self._pictures(x, self.stride)

    def outputs(self, y: Tensor) -> Pictures:
        """A batch of outputs, likewise: pixels of all outputs are neighbours."""
        return self._pictures(y, (1, 1, 1))

    def _pictures(self, x: Tensor, stride: tuple[int, ...]) -> Pictures:
        missing = 5 - x.ndim
        step_image, step_channel, *steps = x.stride()
        depth, height, width = [1] * missing + list(x.shape[2:])
        step_depth, step_height, step_width = [0] * missing + steps
        stride_depth, stride_height, stride_width = stride
        plane_depth, plane_height, plane_width = self.size
        return _pictures(
            step_image=step_image,
            step_channel=step_channel,
            depth=depth,
            height=height,
            width=width,
            step_depth=step_depth,
            step_height=step_height,
            step_width=step_width,
            stride_depth=stride_depth,
            stride_height=stride_height,
            stride_width=stride_width,
            plane_depth=plane_depth,
            plane_height=plane_height,
            plane_width=plane_width,
            images_at_once=self.images_at_once,
        )


@lru_cache(maxsize=256)
def planes_for(how: Convolution, size: tuple[int, ...], num_channels: int, num_images: int) -> Planes:
    """Lay out pictures of a size of which one thread gets at most `num_images`."""
    missing = 3 - len(size)
    num_outputs = how.output_size(size)
    lines = zip(size, num_outputs, how.kernel_size, how.stride, how.padding, how.dilation, strict=True)
    alongs = [_along(1, 1, 1, 1, 0, 1)] * missing + [_along(*line) for line in lines]
    widths = tuple(along.width for along in alongs)
    stride = (*([1] * missing), *how.stride)
    plane = prod(widths)
    images_at_once = max(1, min(num_images, -(-_SIDE_BY_SIDE // plane)))
    steps = (widths[1] * widths[2], widths[2], 1)
    span = 1 + sum((num - 1) * step for num, step in zip([1] * missing + list(num_outputs), steps, strict=True))
    channel_step = (
        _round_up(prod(stride) * images_at_once * plane) + _LANES
    )  # no power of two: cache lines would be shared
    before = _round_up(sum(along.before * step for along, step in zip(alongs, steps, strict=True)))
    taps = [
        c * channel_step
        + sum(tap.shift * step for tap, step in zip(taps, steps, strict=True))
        + images_at_once * plane * _phase(taps, stride)
        for c in range(num_channels // how.groups)
        for taps in product(*(along.taps for along in alongs))
    ]
    sizes = PlaneSizes(
        span=span,
        channel_step=channel_step,
        output_step=_round_up((images_at_once - 1) * plane + span) + _LANES,
        before=before,
        plane_memory=before + num_channels * channel_step + _round_up(plane) + _WIDEST,
    )
    return Planes(widths, stride, images_at_once, sizes, torch.tensor(taps, dtype=torch.int32, device="cpu"))


class _Tap(NamedTuple):
    shift: int
    phase: int


class _Along(NamedTuple):
    width: int
    before: int
    taps: list[_Tap]


def _along(size: int, num_outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> _Along:
    """One dimension: a plane's width, how far taps reach before its beginning, and where each tap begins."""
    taps = [_Tap(*divmod(j * dilation - padding, stride)) for j in range(kernel)]
    content = -(-size // stride)
    before = max(0, -taps[0].shift)
    after = max(0, num_outputs + taps[-1].shift - content)
    return _Along(max(content + max(before, after), num_outputs), before, taps)


def _phase(taps: tuple[_Tap, ...], stride: tuple[int, ...]) -> int:
    number = 0
    for tap, s in zip(taps, stride, strict=True):
        number = number * s + tap.phase
    return number


def _round_up(number: int) -> int:
    return -(-number // _LANES) * _LANES
