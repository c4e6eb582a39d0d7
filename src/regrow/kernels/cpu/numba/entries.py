"""The doors of the compiled kernels: one C function for each kernel and its types, kept on disk for later processes."""

import hashlib
import sys
from functools import cache
from pathlib import Path

import torch
from numba import cfunc, types
from numba.core.compiler import Compiler

from regrow.kernels.cpu import tables
from regrow.kernels.cpu.numba import kernels as numba_kernels
from regrow.kernels.cpu.numba.arguments import read
from regrow.kernels.cpu.numba.simd import ahead, pointer, take

_TYPES = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.uint16: types.uint16,
    torch.int32: types.int32,
}


def entry(kernel, table, value, index):
    """A C function that takes the address of a job and does parts of it until none is left."""
    function = getattr(numba_kernels, kernel)
    takes = function.__annotations__["job"]
    if table is not takes:
        raise TypeError(f"{kernel} takes {takes.__name__}, got {table.__name__}")
    what = function, table, _TYPES[value], _TYPES[index], _stamp()
    try:
        return _compile(*what, keep=True).ctypes
    except RuntimeError:  # no folder that we may write to: every process compiles for itself
        return _compile(*what, keep=False).ctypes


class Announced(Compiler):
    """One that is made where something is compiled, and not where it is read from disk."""

    def __init__(self, *arguments):
        _say_once("regrow compiles its CPU kernels for this machine, which takes some seconds the first time")
        super().__init__(*arguments)


@cache
def _say_once(line):
    print(line, file=sys.stderr, flush=True)


def _compile(kernel, table, value, index, stamp, keep):
    @cfunc(types.void(types.voidptr), cache=keep, pipeline_class=Announced, error_model="numpy")
    def work(job):
        stamp  # noqa: B018, what is compiled is kept by the names used here, and must not outlive a change of sources
        counter = pointer(job, types.int64)
        num_parts, arguments = counter[1], read(ahead(counter, 2), table, value, index)
        part = take(counter)
        while part < num_parts:
            kernel(arguments, part, num_parts, value)
            part = take(counter)

    return work


@cache
def _stamp():
    return hashlib.sha256(b"".join(source.read_bytes() for source in _sources())).hexdigest()


def _sources():
    """All that decides what is compiled."""
    return [Path(tables.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
