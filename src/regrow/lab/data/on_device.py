"""What all data have in common that fit on the device: batches are chosen by index tensors and gathered there."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from regrow.lab.data.batches import check_batch_size, whole_batches


class OnDevice(ABC):
    """An epoch is an order and draws, both functions of (seed, epoch), so that resuming needs nothing saved.

    `batch` and `test_batch` are only gathers and arithmetic on the device: they can stand inside a compiled or captured
    step.
    """

    name: str

    @property
    @abstractmethod
    def num_train(self) -> int:
        """How many an epoch has of what batches are made of."""

    @property
    @abstractmethod
    def num_test(self) -> int:
        """How many there are to test on."""

    @property
    @abstractmethod
    def test_batch_size(self) -> int:
        """How many are tested at once."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where all tensors live."""

    @abstractmethod
    def order(self, epoch: int, seed: int) -> Tensor:
        """What an epoch goes through, one number each."""

    def draws(self, epoch: int, seed: int) -> Tensor | None:
        """What an epoch needs of chance beyond its order."""
        return None

    @abstractmethod
    def batch(self, chosen: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets to train on, for numbers out of an order."""

    @abstractmethod
    def test_batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets to test on, for numbers below `num_test`."""

    def training_batches(
        self,
        epoch: int,
        seed: int,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        first: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Those of one epoch, from batch number `first` on; what is left over at the end waits for another epoch.

        `batch_size` is that of all ranks together; each takes its part of every batch.
        """
        check_batch_size(batch_size, self.num_train, self.name)
        draws, order = self.draws(epoch, seed), self.order(epoch, seed)
        batches = whole_batches(order, batch_size)[first:]
        return (self.batch(chosen[rank::num_ranks], draws) for chosen in batches)

    def evaluation_batches(
        self, batch_size: int, *, device: torch.device | str | None = None, rank: int = 0, num_ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All there is to test on, in order; the last batch may be smaller."""
        batches = torch.split(torch.arange(self.num_test, device=self.device), batch_size)
        return (self.test_batch(chosen[rank::num_ranks]) for chosen in batches)
