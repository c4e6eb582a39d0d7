"""Batches for a training loop, wherever the images live: on the device, or as pictures on disk."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regrow.lab.data.augment import draw_augmentation
from regrow.lab.data.batches import batches, evaluation_batches, training_batch
from regrow.lab.data.dataset import Dataset
from regrow.lab.data.folder import ImageFolder

Data = Dataset | ImageFolder
Batches = Iterator[tuple[Tensor, Tensor]]


def training_batches(data: Data, epoch: int, seed: int, batch_size: int, device: torch.device, first: int) -> Batches:
    """Images and labels of one epoch, from batch number `first` on."""
    if isinstance(data, ImageFolder):
        return data.training_batches(epoch, seed, batch_size, device=device, first=first)
    draws = draw_augmentation(data, epoch, seed)
    chosen = list(batches(data, epoch, seed, batch_size))[first:]
    return (training_batch(data, indices, draws) for indices in chosen)


def test_batches(data: Data, batch_size: int, device: torch.device) -> Batches:
    """All test images and labels, in order."""
    if isinstance(data, ImageFolder):
        return data.evaluation_batches(batch_size, device=device)
    return evaluation_batches(data, batch_size)
