"""Running compiled kernels on the threads that torch computes with.

A second pool of threads would compete with torch's own, which spin for a while after every operation: measured, two
threads of a pool of ours were then no faster than one. So kernels run on torch's OpenMP team, through the entry point
that compilers use. Where that is not to be had, Python threads do the same work, more slowly started.

A job is a row of whole numbers: a counter of parts taken, the number of parts, and the kernel's table. Every thread
takes the next part until none is left. What a part computes does not depend on who takes it, nor when.
"""

import ctypes
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from regrow.core.extras import check_installed
from regrow.kernels.cpu.tables import Table, numbers

_NUM_SMALL = 1 << 21  # multiplications, a tenth of a millisecond: one thread is through before another is awake


def run(kernel: str, value: torch.dtype, index: torch.dtype, num_parts: int, table: Table, work: int) -> None:
    """Run all parts of a kernel; `work` is about how many multiplications there are."""
    entry = _entry(kernel, type(table), value, index)
    job = array("q", [0, num_parts, *numbers(table)])
    address, _ = job.buffer_info()
    num_threads = num_threads_for(work) if num_parts > 1 else 1
    if num_threads == 1:
        entry(address)
    else:
        _on_threads()(entry, address, num_threads)


def num_threads_for(work: int) -> int:
    """How many threads are worth waking for about so many multiplications."""
    return torch.get_num_threads() if work > _NUM_SMALL else 1


@cache
def _entry(kernel: str, table: type[Table], value: torch.dtype, index: torch.dtype) -> Any:
    check_installed("packed", "packed storage on a CPU", "numba", "llvmlite")
    from regrow.kernels.cpu.numba.entries import entry  # here, because numba takes a second to import

    return entry(kernel, table, value, index)  # type: ignore[no-untyped-call]


@cache
def _on_threads() -> Callable[[Any, int, int], object]:
    try:
        start = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another OpenMP, or a system without a global name space
        return on_python_threads
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return lambda entry, job, num_threads: start(entry, job, num_threads, 0)


def on_python_threads(entry: Any, job: int, num_threads: int) -> None:
    """The same on threads that live for this one job, so that neither forks nor other threads can do harm."""
    with ThreadPoolExecutor(num_threads - 1) as pool:
        others = [pool.submit(entry, job) for _ in range(num_threads - 1)]
        entry(job)
        for other in others:
            other.result()
