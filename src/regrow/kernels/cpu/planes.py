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
    """Numbers in a plane along three dimensions, images side by side, and the room they take in all."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    block: int
    run: int
    x_step: int
    y_step: int
    lead: int
    room: int
    taps: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.run, self.x_step, self.y_step, self.lead, self.room

    def input(self, x: Tensor) -> list[int]:
        """A batch of inputs, or of their gradients, as the kernels want to know it."""
        return self._picture(x, self.stride)

    def output(self, y: Tensor) -> list[int]:
        """A batch of outputs, likewise: pixels of all outputs are neighbours."""
        return self._picture(y, (1, 1, 1))

    def _picture(self, x: Tensor, stride: tuple[int, ...]) -> list[int]:
        missing = 5 - x.ndim
        step_image, step_channel, *steps = x.stride()
        size = [1] * missing + list(x.shape[2:])
        return [step_image, step_channel, *size, *([0] * missing), *steps, *stride, *self.size, self.block]


@lru_cache(maxsize=256)
def plan(layer: Convolution, size: tuple[int, ...], num_channels: int, num_images: int) -> Planes:
    """Lay out pictures of a size of which one thread gets at most `num_images`."""
    missing = 3 - len(size)
    lines = list(
        zip(size, layer.output_size(size), layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    )
    alongs = [_along(1, 1, 1, 1, 0, 1)] * missing + [_along(*line) for line in lines]
    widths = tuple(along.width for along in alongs)
    stride = (*([1] * missing), *layer.stride)
    outputs = [1] * missing + list(layer.output_size(size))
    plane = prod(widths)
    block = max(1, min(num_images, -(-_SIDE_BY_SIDE // plane)))
    steps = (widths[1] * widths[2], widths[2], 1)
    run = 1 + sum((out - 1) * step for out, step in zip(outputs, steps, strict=True))
    x_step = _round_up(prod(stride) * block * plane) + _LANES  # never a power of two, which would share cache lines
    y_step = _round_up((block - 1) * plane + run) + _LANES
    lead = _round_up(sum(along.lead * step for along, step in zip(alongs, steps, strict=True)))
    room = lead + num_channels * x_step + _round_up(plane) + _WIDEST
    taps = [
        c * x_step
        + sum(tap.shift * step for tap, step in zip(taps, steps, strict=True))
        + block * plane * _phase(taps, stride)
        for c in range(num_channels // layer.groups)
        for taps in product(*(along.taps for along in alongs))
    ]
    return Planes(
        widths, stride, block, run, x_step, y_step, lead, room, torch.tensor(taps, dtype=torch.int32, device="cpu")
    )


class _Tap(NamedTuple):
    shift: int
    phase: int


class _Along(NamedTuple):
    width: int
    lead: int
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
