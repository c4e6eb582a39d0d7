"""The doors of the compiled kernels: one C function for each kernel and its types, kept on disk for later processes."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from numba import cfunc, types

from regrow.kernels.cpu.numba import kernels as numba_kernels
from regrow.kernels.cpu.numba.simd import pointer, take

_TYPES = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.uint16: types.uint16,
    torch.int32: types.int32,
}


@cache
def entry(kernel, value, index):
    """A C function that takes the address of a job and does parts of it until none is left."""
    what = getattr(numba_kernels, kernel), _TYPES[value], _TYPES[index], _stamp()
    try:
        return _compile(*what, keep=True).ctypes
    except RuntimeError:  # no folder that we may write to: every process compiles for itself
        return _compile(*what, keep=False).ctypes


def _compile(kernel, value, index, stamp, keep):
    @cfunc(types.void(types.voidptr), cache=keep, error_model="numpy")
    def work(job):
        stamp  # noqa: B018, what is compiled is kept by the names used here, and must not outlive a change of sources
        numbers = pointer(job, types.int64)
        part = take(numbers)
        while part < numbers[1]:
            kernel(numbers, part, value, index)
            part = take(numbers)

    return work


@cache
def _stamp():
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
