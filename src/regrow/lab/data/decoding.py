"""Pictures decoded ahead of time: by threads, or, to feed a GPU, by processes that write into batches which all see."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from math import prod
from mmap import mmap
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from regrow.lab.data.pictures import Cut

T = TypeVar("T")
_BATCHES_AHEAD = 3
_AT_ONCE = 8  # pictures that a process is asked for: fewer would be more talk, more would keep a batch waiting for one
Parts = Sequence[Sequence[int]]
"""Numbers of pictures, for each batch."""
CutOf = Callable[[int], Cut]
"""What is to be cut out of which."""


def by_threads(parts: Parts, cut_of: CutOf, size: int, num_threads: int) -> Generator[Tensor]:
    """Batches in order, (pictures, 3, size, size)."""
    pool = ThreadPoolExecutor(num_threads)
    try:
        for futures in _ahead(parts, lambda batch: [pool.submit(cut_of(index)) for index in parts[batch]]):
            images = torch.empty(len(futures), 3, size, size, dtype=torch.uint8)
            for place, future in enumerate(futures):
                images[place] = torch.from_numpy(future.result()).permute(2, 0, 1)
            yield images
    finally:
        pool.shutdown(cancel_futures=True)  # also when the reader stops early


def by_processes(parts: Parts, cut_of: CutOf, size: int, num_processes: int, device: torch.device) -> Generator[Tensor]:
    """The same on a device, stored with the channels innermost; the next ones are already on their way."""
    pool = _processes(num_processes)
    most = max(map(len, parts), default=0) or 1
    slots = [_Slot((most, size, size, 3), device) for _ in range(_BATCHES_AHEAD + 1)]
    running: deque[list[Future[None]]] = deque()

    def submit(batch: int) -> "list[Future[None]]":
        slot, numbered = slots[batch % len(slots)], [(place, cut_of(i)) for place, i in enumerate(parts[batch])]
        slot.wait()
        tasks = [numbered[first : first + _AT_ONCE] for first in range(0, len(numbered), _AT_ONCE)]
        running.append([pool.submit(_decode_into, slot.path, slot.shape, task) for task in tasks])
        return running[-1]

    try:
        for batch, futures in enumerate(_ahead(parts, submit)):
            for future in futures:
                future.result()
            running.popleft()
            yield slots[batch % len(slots)].take(len(parts[batch])).permute(0, 3, 1, 2)
    except BrokenProcessPool:
        _processes.cache_clear()  # whoever comes next has others
        raise OSError("a process that decodes pictures was killed; is memory left? run it again to go on") from None
    finally:
        for futures in running:
            wait([future for future in futures if not future.cancel()])  # or they would write where nothing is
        for slot in slots:
            slot.close()


def cores_for_each() -> int:
    """Cores that this process may use, shared with the others that torchrun started on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _ahead(parts: Parts, submit: Callable[[int], list[T]]) -> Iterator[list[T]]:
    """What was submitted for each batch, in order, while a few more are submitted already."""
    ahead: deque[list[T]] = deque()
    for batch in range(len(parts)):
        if len(ahead) == _BATCHES_AHEAD:
            yield ahead.popleft()
        ahead.append(submit(batch))
    yield from ahead


class _Slot:
    """Memory for a batch that processes write into and a GPU reads by itself.

    It has no name in any file system, where it might find too little room, or stay behind when all are killed.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.shape, self._device = shape, device
        self._file = os.memfd_create("batch")
        os.ftruncate(self._file, prod(shape))
        self._memory = mmap(self._file, prod(shape))
        self._images = torch.frombuffer(self._memory, dtype=torch.uint8).view(shape)
        self._is_pinned = device.type == "cuda"
        self._read: torch.cuda.Event | None = None
        if self._is_pinned:
            _cudart().cudaHostRegister(self._images.data_ptr(), self._images.numel(), 0)

    @property
    def path(self) -> str:
        """Where the other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def take(self, count: int) -> Tensor:
        """The first pictures, on the device; on a CPU a copy, since the next batch comes to the same place."""
        if not self._is_pinned:
            return self._images[:count].clone()
        images = self._images[:count].to(self._device, non_blocking=True)
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._read.record()
        return images

    def wait(self) -> None:
        """Until it may be written again."""
        if self._read:
            self._read.synchronize()

    def close(self) -> None:
        self.wait()
        if self._is_pinned:
            _cudart().cudaHostUnregister(self._images.data_ptr())
        del self._images
        self._memory.close()
        os.close(self._file)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


@cache
def _processes(count: int) -> ProcessPoolExecutor:
    """Started once: what they need of Python takes seconds to load."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=_belong)


def _belong() -> None:
    """Leave it to the process that trains what signals mean, and end with it, however it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=end, daemon=True).start()


def _decode_into(path: str, shape: tuple[int, ...], numbered: Sequence[tuple[int, Cut]]) -> None:
    """What a process does: fill some places of a batch."""
    with open(path, "r+b") as file, mmap(file.fileno(), prod(shape)) as memory:
        batch = np.ndarray(shape, np.uint8, memory)
        try:
            for place, cut in numbered:
                batch[place] = cut()
        finally:
            del batch  # or the memory could not be closed
