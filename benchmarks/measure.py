"""Timing and memory, on a CPU and on a GPU."""

import ctypes
import gc
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter

import torch


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time of one call, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


def interleaved(
    sides: dict[str, tuple[Callable[[], object], Callable[[], object]]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Median milliseconds of each side's work, its preparation left out.

    The sides take turns in blocks of five, so that a busy machine slows all of them alike; the first block warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(1 + -(-repeats // 5)):
        for name, (prepare, work) in sides.items():
            for _ in range(5):
                prepare()
                taken = seconds(work, device)
                if block > 0:
                    times[name].append(1000 * taken)
    return {name: median(values) for name, values in times.items()}


def peak_extra_bytes(work: Callable[[], object], device: torch.device) -> int:
    """How much more memory is held at the worst moment of the call than before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    return held_and_peak_bytes(work)[1]


def held_and_peak_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """How much more memory this process holds after the call than before it, and at the worst moment of it."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free goes back to the system, so that using it counts
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _resident("VmRSS")
    result = work()
    peak = _resident("VmHWM") - before
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    held = _resident("VmRSS") - before
    del result
    return max(held, 0), max(peak, 0)


def peak_allocated_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The same, counted in torch's allocator: exact, but blind to what numpy and the compiled kernels hold."""
    if device.type == "cuda":
        return peak_extra_bytes(work, device)
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(accumulate(changes, initial=0))


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def resident_bytes() -> int:
    """What this process has in memory now."""
    return _resident("VmRSS")


def table(rows: list[list[str]]) -> str:
    """Rows as aligned text; the first is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
