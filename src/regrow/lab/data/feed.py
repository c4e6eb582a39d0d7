"""What a training loop asks of data, wherever they live: on the device, or as pictures on disk."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

Batches = Iterator[tuple[Tensor, Tensor]]


class Data(Protocol):
    """Open, to be trained and tested on."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def num_train(self) -> int: ...

    @property
    def test_batch_size(self) -> int: ...

    def training_batches(
        self,
        epoch: int,
        seed: int,
        batch_size: int,
        *,
        device: torch.device,
        first: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> Batches:
        """Inputs and targets of one epoch, from batch number `first` on; of each batch the part that is a rank's."""

    def evaluation_batches(
        self, batch_size: int, *, device: torch.device, rank: int = 0, num_ranks: int = 1
    ) -> Batches:
        """All there is to test on, in order; of each batch the part that is a rank's."""
