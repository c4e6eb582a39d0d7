"""How a run takes its steps: one operation after the other, or on a GPU as a captured graph that is replayed."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from regrow.lab.data import OnDevice
from regrow.lab.run.compile import compiled
from regrow.lab.run.state import Meter, Training, new_meter

_WARM_UP = 3


class Steps(Protocol):
    """Takes a run through its epochs."""

    def begin_epoch(self, first: int) -> None:
        """Get ready for the epoch's batches from number `first` on."""

    def step(self) -> None:
        """Train on the next batch."""

    def evaluate(self) -> Meter:
        """Have the test judged; reading the result waits for the device, which need not be done yet."""


def choose_steps(training: Training) -> Steps:
    """Captured where the device and the data allow it, and nobody is to be waited for within a step."""
    is_on_gpu = training.device.type == "cuda" and isinstance(training.data, OnDevice)
    is_packed = training.config.storage == "packed"  # whose rewirings change the sizes of layers
    is_alone = not training.ranks.is_joined
    return CapturedSteps(training) if is_on_gpu and is_alone and not is_packed else EagerSteps(training)


class EagerSteps:
    """As in any training loop."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())

    def begin_epoch(self, first: int) -> None:
        training, config = self._training, self._training.config
        self._batches = training.data.training_batches(
            training.epoch, config.seed, config.batch_size, device=training.device, first=first, **training.ranks.part
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
    """Loss and hits on all there is to test on, of which each rank is given a part."""
    meter, data, ranks = new_meter(training.device), training.data, training.ranks
    ranks.share_buffers(training.model)
    training.model.eval()
    for inputs, targets in data.evaluation_batches(data.test_batch_size, device=training.device, **ranks.part):
        loss, hits = training.judge(inputs, targets)
        if targets.numel():  # the last batch may have none for this rank, which the others' layers may wait for
            meter.add(loss, hits, targets.numel())
    training.model.train()
    return meter


class CapturedSteps:
    """One CUDA graph from the choice of the inputs to the optimizer's step.

    Everything that changes between steps lies in tensors: the epoch's order and draws, which batch is next, the
    learning rate. Rewiring edits masks and weights in place, outside of the graph. The first steps are taken one
    operation after the other, as a graph can only be captured when optimizer and libraries have set themselves up.
    """

    def __init__(self, training: Training) -> None:
        assert isinstance(training.data, OnDevice)
        self._training, self._data = training, training.data
        device, batch_size = training.device, training.config.batch_size
        self._batch = compiled(self._data.batch) if training.is_compiled else self._data.batch
        self._order = torch.zeros(training.steps_per_epoch, batch_size, dtype=torch.int64, device=device)
        self._draws = self._data.draws(0, training.config.seed)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._rate = torch.tensor(training.rate, device=device)
        self._rate_on_host = training.rate
        for group in training.optimizer.param_groups:
            group["lr"] = self._rate
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_warm = self._num_targets = 0
        self._test = CapturedTest(training, self._data)

    def begin_epoch(self, first: int) -> None:
        training = self._training
        order = self._data.order(training.epoch, training.config.seed)
        self._order.copy_(order[: self._order.numel()].view_as(self._order))
        draws = self._data.draws(training.epoch, training.config.seed)
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
            training.meter.seen += self._num_targets
            training.sparse.advance()
        training.step += 1

    def evaluate(self) -> Meter:
        return self._test.run()

    def _work(self) -> None:
        indices = self._order.index_select(0, self._next).flatten()
        self._training.update(*self._batch(indices, self._draws))
        self._next += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record a step without taking it."""
        seen = self._training.meter.seen
        graph = capture(self._work, self._training.device)
        self._num_targets = self._training.meter.seen - seen
        self._training.meter.seen = seen
        return graph


class CapturedTest:
    """The evaluation of a full batch as a graph; the first time, and for what is left over, without one."""

    def __init__(self, training: Training, data: OnDevice) -> None:
        self._training, self._data, self._size = training, data, data.test_batch_size
        self._meter = new_meter(training.device)
        self._places = torch.arange(self._size, device=training.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm, self._num_targets = False, 0

    def run(self) -> Meter:
        """Loss and hits on all there is to test on."""
        num_batches, rest = divmod(self._data.num_test, self._size)
        if not num_batches or not self._is_warm:
            self._is_warm = True
            return evaluate(self._training)
        self._training.model.eval()
        with torch.no_grad():
            if self._graph is None:
                self._graph = capture(self._work, self._training.device)
                self._num_targets = self._meter.seen
            self._meter.set()
            self._places -= self._places[0].clone()
            for _ in range(num_batches):
                self._graph.replay()
            self._meter.seen = num_batches * self._num_targets
            if rest:
                self._judge(self._places[:rest])
        self._training.model.train()
        return self._meter

    def _work(self) -> None:
        self._judge(self._places)
        self._places += self._size

    def _judge(self, places: Tensor) -> None:
        inputs, targets = self._data.test_batch(places)
        self._meter.add(*self._training.judge(inputs, targets), targets.numel())


def capture(work: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """Record what some work does on the current stream, without doing it."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
