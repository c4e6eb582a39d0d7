"""How a run takes its steps: one operation after the other, or on a GPU as a captured graph that is replayed."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from regrow.lab.data import (
    Dataset,
    draw_augmentation,
    epoch_order,
    normalize,
    test_batches,
    training_batch,
    training_batches,
)
from regrow.lab.run.compile import compiled
from regrow.lab.run.state import Meter, Training, new_meter

_WARM_UP = 3
_TEST_BATCH = 1000


class Steps(Protocol):
    """Takes a run through its epochs."""

    def begin_epoch(self, first: int) -> None:
        """Get ready for the epoch's batches from number `first` on."""

    def step(self) -> None:
        """Train on the next batch."""

    def evaluate(self) -> Meter:
        """Have the test images judged; reading the result waits for the device, which need not be done yet."""


def choose_steps(training: Training) -> Steps:
    """Captured where the device and the data allow it."""
    is_on_gpu = training.device.type == "cuda" and isinstance(training.data, Dataset)
    is_packed = training.config.storage == "packed"  # whose rewirings change the sizes of layers
    return CapturedSteps(training) if is_on_gpu and not is_packed else EagerSteps(training)


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

    def evaluate(self) -> Meter:
        return evaluate(self._training)


@torch.no_grad()
def evaluate(training: Training) -> Meter:
    """Loss and hits on the test images."""
    meter = new_meter(training.device)
    training.model.eval()
    for images, labels in test_batches(training.data, _TEST_BATCH, training.device):
        meter.add(*training.judge(images, labels), len(labels))
    training.model.train()
    return meter


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
        self._training_batch = compiled(training_batch) if training.is_compiled else training_batch
        self._order = torch.zeros(training.steps_per_epoch, batch_size, dtype=torch.int64, device=device)
        self._draws = draw_augmentation(self._data, 0, training.config.seed)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._rate = torch.tensor(training.rate, device=device)
        self._rate_on_host = training.rate
        for group in training.optimizer.param_groups:
            group["lr"] = self._rate
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_warm = 0
        self._test = CapturedTest(training, self._data)

    def begin_epoch(self, first: int) -> None:
        training = self._training
        order = epoch_order(
            self._data.num_train, epoch=training.epoch, seed=training.config.seed, device=training.device
        )
        self._order.copy_(order[: self._order.numel()].view_as(self._order))
        draws = draw_augmentation(self._data, training.epoch, training.config.seed)
        if self._draws is not None and draws is not None:
            self._draws.copy_(draws)
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

    def evaluate(self) -> Meter:
        return self._test.run()

    def _work(self) -> None:
        indices = self._order.index_select(0, self._next).flatten()
        self._training.update(*self._training_batch(self._data, indices, self._draws))
        self._next += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record a step without taking it."""
        seen = self._training.meter.seen
        graph = capture(self._work, self._training.device)
        self._training.meter.seen = seen
        return graph


class CapturedTest:
    """The evaluation of one batch as a graph; the first time, and where batches are not all full, without one."""

    def __init__(self, training: Training, data: Dataset) -> None:
        self._training, self._data = training, data
        self._meter = new_meter(training.device)
        self._places = torch.arange(_TEST_BATCH, device=training.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False

    def run(self) -> Meter:
        """Loss and hits on the test images."""
        num_batches, rest = divmod(self._data.num_test, _TEST_BATCH)
        if rest or not self._is_warm:
            self._is_warm = True
            return evaluate(self._training)
        if self._graph is None:
            self._training.model.eval()
            with torch.no_grad():
                self._graph = capture(self._work, self._training.device)
            self._training.model.train()
        self._meter.set()
        self._places -= self._places[0].clone()
        for _ in range(num_batches):
            self._graph.replay()
        self._meter.seen = self._data.num_test
        return self._meter

    def _work(self) -> None:
        images = normalize(self._data.test_images[self._places], self._data.mean, self._data.std)
        self._meter.add(*self._training.judge(images, self._data.test_labels[self._places]), _TEST_BATCH)
        self._places += _TEST_BATCH


def capture(work: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """Record what some work does on the current stream, without doing it."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
