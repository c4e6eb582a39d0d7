"""A small set that can be learnt and needs no download: one smooth, tinted pattern per class, under noise."""

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from regrow.lab.config.component import component
from regrow.lab.data.dataset import Augmentation, Dataset, Splits, place
from regrow.lab.data.named import NamedData
from regrow.lab.data.sources import Progress

_COARSE = 5  # patterns are this coarse before they are blown up to the image
_NOISE = 60.0
_STRENGTH = 6.0  # of all of a pattern together, in units of the noise: neither hopeless nor trivial


def synthesize(
    *,
    image_shape: tuple[int, int, int] = (1, 28, 28),
    num_classes: int = 10,
    num_train: int = 2_000,
    num_test: int = 500,
    seed: int = 0,
    augmentation: Augmentation = "none",
    name: str = "synthetic",
    device: torch.device | str = "cpu",
) -> Dataset:
    """Make the set from its seed; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(num_classes, image_shape[0], _COARSE, _COARSE, generator=generator)
    tints = torch.randn(num_classes, image_shape[0], 1, 1, generator=generator)  # what a convolution sees at once
    patterns = functional.interpolate(coarse, size=image_shape[1:], mode="bilinear", align_corners=False) + tints
    if augmentation == "crop_flip":
        patterns = (patterns + patterns.flip(-1)) / 2  # a mirrored image must still show its class
    patterns *= _NOISE * _STRENGTH / patterns.square().sum((1, 2, 3)).mean().sqrt()
    splits = Splits(*_draw(patterns, num_train, generator), *_draw(patterns, num_test, generator))
    pixels = splits.train_images.float()
    return place(
        splits,
        name=name,
        num_classes=num_classes,
        mean=pixels.mean((0, 2, 3)).tolist(),
        std=pixels.std((0, 2, 3)).tolist(),
        augmentation=augmentation,
        device=device,
    )


def _draw(patterns: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % len(patterns)  # balanced; the epoch's order shuffles
    noise = torch.randn(count, *patterns.shape[1:], generator=generator)
    pixels = 128 + patterns[labels] + _NOISE * noise
    return pixels.round().clamp(0, 255).to(torch.uint8), labels


@component
class Synthetic(NamedData):
    """Grey images of 28 x 28, made on the spot."""

    name: ClassVar[str] = "synthetic"
    title: ClassVar[str] = "synthetic data"

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Dataset:
        return synthesize(device=device)


@component
class SyntheticColour(NamedData):
    """Colour images of 32 x 32, made on the spot."""

    name: ClassVar[str] = "synthetic_colour"
    title: ClassVar[str] = "synthetic colour data"

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Dataset:
        return synthesize(image_shape=(3, 32, 32), augmentation="crop_flip", name=self.name, device=device)
