"""Which images make up which batch: a pure function of (seed, epoch), so that resuming needs nothing saved."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regrow.core.random import bits, key
from regrow.lab.data.augment import crop_and_flip
from regrow.lab.data.dataset import Dataset, normalize

_ORDER = int.from_bytes(b"order")


def epoch_order(num_images: int, *, epoch: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The order in which an epoch visits its images, the same on every device."""
    random = bits(key(seed, epoch, _ORDER), torch.arange(num_images, device=device))
    return random.argsort(stable=True)


def batches(dataset: Dataset, epoch: int, seed: int, batch_size: int) -> Iterator[Tensor]:
    """Index tensors of one epoch, all of `batch_size`; what is left over at the end waits for another epoch."""
    check_batch_size(batch_size, dataset.num_train, dataset.name)
    order = epoch_order(dataset.num_train, epoch=epoch, seed=seed, device=dataset.device)
    return iter(whole_batches(order, batch_size))


def whole_batches(order: Tensor, batch_size: int) -> tuple[Tensor, ...]:
    """Cut an order into batches of one size, dropping the rest.

    >>> [batch.tolist() for batch in whole_batches(torch.arange(5), 2)]
    [[0, 1], [2, 3]]
    """
    num_batches = len(order) // batch_size
    return order[: num_batches * batch_size].view(num_batches, batch_size).unbind()


def check_batch_size(batch_size: int, num_images: int, name: str) -> None:
    """Refuse a batch size that would make an epoch of no batches."""
    if not 1 <= batch_size <= num_images:
        raise ValueError(
            f"batch_size must be between 1 and {num_images}, the training images of {name}, got {batch_size}"
        )


def training_batch(dataset: Dataset, indices: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Augmented, normalized images and their labels; `draws` is what `draw_augmentation` gave for the epoch.

    Only gathers and arithmetic on the device, so it can stand inside a compiled or captured step.
    """
    images = dataset.train_images[indices]
    if draws is not None:
        images = crop_and_flip(images, draws[indices])
    return normalize(images, dataset.mean, dataset.std), dataset.train_labels[indices]


def evaluation_batches(dataset: Dataset, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All test images, normalized, and their labels, in order; the last batch may be smaller."""
    for first in range(0, dataset.num_test, batch_size):
        part = slice(first, first + batch_size)
        yield normalize(dataset.test_images[part], dataset.mean, dataset.std), dataset.test_labels[part]
