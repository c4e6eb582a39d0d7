"""Small kernels where torch has no single call, and whether they can be compiled here."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch


def can_use_triton(device: torch.device) -> bool:
    return device.type == "cuda" and _triton_kernels() is not None


def on(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one, at no cost where it already is; a CPU needs none, for Triton's interpreter."""
    is_there = device.type != "cuda" or torch.cuda.current_device() == device.index
    return nullcontext() if is_there else torch.cuda.device(device)


def is_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return bool(torch.cuda.is_initialized()) and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def kernel(name: str) -> Any:
    """A GPU kernel by name."""
    return _triton_kernels()[name]


@cache
def _triton_kernels() -> Any:
    """The GPU kernels by name; None without Triton, or with one before 3.3, which had no tuple arguments."""
    if find_spec("triton") is None:
        return None
    import triton

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 3):
        return None

    from regrow.kernels.gpu.triton import deepr_walk, row, spread

    return {name: found for module in (row, deepr_walk, spread) for name, found in vars(module).items()}
