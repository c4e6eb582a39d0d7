"""A data set that fits on the device: whole tensors, no loader in the way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regrow.core.random import bits, key
from regrow.lab.data.augment import PAD, crop_and_flip, draw_crops
from regrow.lab.data.batches import epoch_order
from regrow.lab.data.on_device import OnDevice

_HELD_OUT = int.from_bytes(b"heldout")

Augmentation = Literal["none", "crop_flip"]


@dataclass(frozen=True, eq=False)
class Dataset(OnDevice):
    """Images (N, channels, height, width) as uint8 and labels as int64, all on one device.

    `mean` and `std` are per channel, in pixel units (0 to 255), shaped to broadcast over images. Where a part of the
    training images is held out, `kept` are the numbers of those to train on and `held` of those to test on.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    mean: Tensor
    std: Tensor
    augmentation: Augmentation
    pad: int = PAD
    kept: Tensor | None = None
    held: Tensor | None = None

    @property
    def num_train(self) -> int:
        """How many images there are to train on."""
        return len(self.train_labels if self.kept is None else self.kept)

    @property
    def num_test(self) -> int:
        """How many images there are to test on."""
        return len(self.test_labels if self.held is None else self.held)

    @property
    def test_batch_size(self) -> int:
        """How many are tested at once."""
        return 1000

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return tuple(self.train_images.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where all tensors live."""
        return self.train_images.device

    def order(self, epoch: int, seed: int) -> Tensor:
        """Every training image once."""
        order = epoch_order(self.num_train, epoch=epoch, seed=seed, device=self.device)
        return order if self.kept is None else self.kept[order]

    def draws(self, epoch: int, seed: int) -> Tensor | None:
        """How each training image is augmented, to be indexed like the images; None if it is not."""
        if self.augmentation == "none":
            return None
        return draw_crops(len(self.train_labels), epoch=epoch, seed=seed, device=self.device, pad=self.pad)

    def batch(self, chosen: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Augmented, normalized images and their labels."""
        images = self.train_images[chosen]
        if draws is not None:
            images = crop_and_flip(images, draws[chosen], self.pad)
        return normalize(images, self.mean, self.std), self.train_labels[chosen]

    def test_batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized images and their labels."""
        images, labels = self.test_images, self.test_labels
        if self.held is not None:
            images, labels, chosen = self.train_images, self.train_labels, self.held[chosen]
        return normalize(images[chosen], self.mean, self.std), labels[chosen]

    def holding_out(self, share: float, seed: int) -> "Dataset":
        """The same images, of which a share of those to train on, chosen by a seed, is to be tested on instead."""
        num_images = len(self.train_labels)
        num_held = round(share * num_images)
        if not 0 < num_held < num_images:
            raise ValueError(f"data.held_out={share:g} leaves nothing of {num_images} images on one side; say 0.1")
        order = bits(key(seed, _HELD_OUT), torch.arange(num_images, device=self.device)).argsort(stable=True)
        return replace(self, held=order[:num_held].sort().values, kept=order[num_held:].sort().values)


Labelled = tuple[Tensor, Tensor]
"""Images and their labels."""


class Splits(NamedTuple):
    """What a reader gets out of the files of a data set, before it moves to a device."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def place(
    splits: Splits,
    *,
    name: str,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    augmentation: Augmentation,
    device: torch.device | str,
    pad: int = PAD,
) -> Dataset:
    """Put images, labels and what is needed to normalize them on the device."""
    return Dataset(
        name=name,
        train_images=splits.train_images.to(device),
        train_labels=splits.train_labels.to(device),
        test_images=splits.test_images.to(device),
        test_labels=splits.test_labels.to(device),
        num_classes=num_classes,
        mean=per_channel(mean, device),
        std=per_channel(std, device),
        augmentation=augmentation,
        pad=pad,
    )


def per_channel(values: Sequence[float], device: torch.device | str) -> Tensor:
    """Numbers per channel in the shape that broadcasts over a batch of images."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Pixels as floats of mean 0 and deviation 1, on the device they are on."""
    return (images.to(mean.dtype) - mean) / std
