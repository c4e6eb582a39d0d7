"""One picture file, decoded and cut to size on the CPU."""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from regrow.core.extras import check_installed
from regrow.core.random import key

if TYPE_CHECKING:
    from PIL.Image import Image

_PICTURE = int.from_bytes(b"picture")
_ATTEMPTS = 10
_AREAS = (0.08, 1.0)
_RATIOS = (3 / 4, 4 / 3)
_TEST_MARGIN = 256 / 224  # the test image is cut out of one this much larger

Box = tuple[int, int, int, int]


Pixels = NDArray[np.uint8]
"""(height, width, 3)."""


@dataclass(frozen=True)
class RandomCut:
    """A random part of a picture, stretched to a square and mirrored half of the time, for training."""

    path: Path
    size: int
    epoch: int
    seed: int
    index: int

    def __call__(self) -> Pixels:
        random = Random(key(self.seed, self.epoch, self.index, _PICTURE))
        picture = read_picture(self.path)
        cut = picture.resize((self.size, self.size), _bilinear(), box=random_box(*picture.size, random))
        pixels = np.array(cut, dtype=np.uint8)
        return np.ascontiguousarray(pixels[:, ::-1]) if random.random() < 0.5 else pixels


@dataclass(frozen=True)
class CentreCut:
    """The centre square of a picture, whose shorter side is first scaled to 256/224 of `size`, for testing."""

    path: Path
    size: int

    def __call__(self) -> Pixels:
        picture, size = read_picture(self.path), self.size
        scale = round(size * _TEST_MARGIN) / min(picture.size)
        width, height = (round(side * scale) for side in picture.size)
        left, top = (width - size) // 2, (height - size) // 2
        scaled = picture.resize((width, height), _bilinear())
        return np.array(scaled.crop((left, top, left + size, top + size)), dtype=np.uint8)


Cut = RandomCut | CentreCut


def random_box(width: int, height: int, random: Random) -> Box:
    """(left, top, right, bottom) of 8 % to all of the area, 3:4 to 4:3 in shape (Szegedy et al., 2015)."""
    for _ in range(_ATTEMPTS):
        area = width * height * random.uniform(*_AREAS)
        ratio = math.exp(random.uniform(math.log(_RATIOS[0]), math.log(_RATIOS[1])))
        cut_width, cut_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            left, top = random.randint(0, width - cut_width), random.randint(0, height - cut_height)
            return left, top, left + cut_width, top + cut_height
    # A very long picture: the largest centre part of an allowed shape.
    cut_width, cut_height = min(width, round(height * _RATIOS[1])), min(height, round(width / _RATIOS[0]))
    left, top = (width - cut_width) // 2, (height - cut_height) // 2
    return left, top, left + cut_width, top + cut_height


def read_picture(file: Path | BinaryIO, name: str = "") -> "Image":
    """Decode a picture to red, green and blue; an unreadable one is named, by its path if nothing else is said."""
    check_installed("lab", "reading pictures", "PIL")
    from PIL import Image

    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise ValueError(f"{name or file} cannot be read as a picture ({error}); replace or remove it") from error


def shrink(picture: "Image", size: int) -> "Image":
    """It with a shorter side of `size`, unless that is shorter already."""
    scale = size / min(picture.size)
    if scale >= 1:
        return picture
    width, height = (max(size, round(side * scale)) for side in picture.size)
    return picture.resize((width, height), _bilinear())


def _bilinear() -> int:
    from PIL import Image

    return Image.Resampling.BILINEAR
