"""How a run takes its steps: one operation after the other, or on a GPU as a captured graph that is replayed."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from regrow.lab.data import Dataset, draw_augmentation, epoch_order, training_batch, training_batches
from regrow.lab.training import Training

_WARM_UP = 3


class Steps(Protocol):
    """Takes a run through its epochs."""

    def begin_epoch(self, first: int) -> None:
        """Get ready for the epoch's batches from number `first` on."""

    def step(self) -> None:
        """Train on the next batch."""


def choose_steps(training: Training) -> Steps:
    """Captured where the device and the data allow it."""
    is_on_gpu = training.device.type == "cuda" and isinstance(training.data, Dataset)
    return CapturedSteps(training) if is_on_gpu else EagerSteps(training)


class EagerSteps:
    """As in any training loop."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())

    def begin_epoch(self, first: int) -> None:
        training = self._training
        self._batches = training_batches(
            training.data, training.epoch, training.config.seed, training.config.batch_size, training.device, first
        )

    def step(self) -> None:
        training = self._training
        for group in training.optimizer.param_groups:
            group["lr"] = training.rate
        training.update(*next(self._batches))
        training.step += 1


class CapturedSteps:
    """One CUDA graph from the choice of the images to the optimizer's step.

    Everything that changes between steps lies in tensors: the epoch's order and augmentation, which batch is next, the
    learning rate. Rewiring edits masks and weights in place, outside of the graph. The first steps are taken one
    operation after the other, as a graph can only be captured when optimizer and libraries have set themselves up.
    """

    def __init__(self, training: Training) -> None:
        assert isinstance(training.data, Dataset)
        self._training, self._data = training, training.data
        device, batch_size = training.device, training.config.batch_size
        self._order = torch.zeros(training.steps_per_epoch, batch_size, dtype=torch.int64, device=device)
        self._draws = draw_augmentation(self._data, 0, training.config.seed)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._rate = torch.tensor(training.rate, device=device)
        self._rate_on_host = training.rate
        for group in training.optimizer.param_groups:
            group["lr"] = self._rate
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_warm = 0

    def begin_epoch(self, first: int) -> None:
        training = self._training
        order = epoch_order(
            self._data.num_train, epoch=training.epoch, seed=training.config.seed, device=training.device
        )
        self._order.copy_(order[: self._order.numel()].view_as(self._order))
        if self._draws is not None:
            self._draws.copy_(_drawn(draw_augmentation(self._data, training.epoch, training.config.seed)))
        self._next.fill_(first)

    def step(self) -> None:
        training = self._training
        if training.rate != self._rate_on_host:
            self._rate_on_host = training.rate
            self._rate.fill_(training.rate)
        if self._num_warm < _WARM_UP:
            self._work()
            self._num_warm += 1
        else:
            if self._graph is None:
                self._graph = self._capture()
            self._graph.replay()
            training.meter.seen += training.config.batch_size
            training.sparse.advance()
        training.step += 1

    def _work(self) -> None:
        indices = self._order.index_select(0, self._next).flatten()
        self._training.update(*training_batch(self._data, indices, self._draws))
        self._next += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record a step without taking it."""
        seen = self._training.meter.seen
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._training.device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._work()
        self._training.meter.seen = seen
        return graph


def _drawn(draws: Tensor | None) -> Tensor:
    assert draws is not None
    return draws
