"""A sparse linear layer and the normalisation of what it gives, with or without ReLU, on a CPU.

Both are done in one start of a kernel where one thread does them; several threads must meet in between.
"""

from array import array
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regrow.kernels.cpu_linear import backward_job, forward_job, start
from regrow.kernels.pattern import Pattern
from regrow.kernels.team import num_threads_for, run

_COST = 8  # of a number here, in multiplications elsewhere
_NUM_KEPT = 4  # numbers of each channel: mean, 1 / deviation, factor, and room for a sum


class Norm(NamedTuple):
    """Weight and bias; running mean and variance, which move on, and number of batches, which becomes one more."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    num_batches: Tensor
    epsilon: float
    momentum: float
    relu: bool


def block_forward(
    pattern: Pattern, values: Tensor, x: Tensor, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, Tensor]:
    """(y, what the way back needs) of a batch [samples, channels]: what the norm got, and below it its own numbers."""
    num_samples, num_channels = x.shape[0], pattern.num_rows
    y, kept = x.new_empty(num_samples, num_channels), x.new_empty(num_samples + _NUM_KEPT, num_channels)
    sums = array("d", bytes(8 * num_channels))
    job = forward_job(pattern, values, x, bias, kept)
    h = kept.data_ptr()
    args = [
        num_samples, num_channels, _numbers(norm.epsilon, norm.momentum, _floor(norm))[1], h, y.data_ptr(),
        norm.weight.data_ptr(), norm.bias.data_ptr(), norm.mean.data_ptr(), norm.variance.data_ptr(),
        norm.num_batches.data_ptr(), h + y.nbytes, sums.buffer_info()[0],
    ]  # fmt: skip
    work, num_parts = _parts(y)
    index = pattern.rows.dtype
    if job.num_parts == num_parts == 1:
        run("block_forward", y.dtype, index, 1, _one_after_the_other(job.args, args), work)
    else:
        start("linear_forward", pattern, job)
        run("norm_forward", y.dtype, index, num_parts, args, work)
    return y, kept


def block_backward(
    pattern: Pattern, values: Tensor, x: Tensor, kept: Tensor, dy: Tensor, norm: Norm, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x (or None), the values, what the norm got, its weight and its bias."""
    num_samples, num_channels = dy.shape
    dy = dy.resolve_neg().contiguous()
    dx, gradient = x.new_empty(x.shape) if needs_input else None, torch.zeros_like(values)
    dh, dweight, dbias = torch.empty_like(dy), dy.new_empty(num_channels), dy.new_empty(num_channels)
    sums = array("d", bytes(32 * num_channels))
    exact, _ = sums.buffer_info()
    h = kept.data_ptr()
    args = [
        num_samples, num_channels, _numbers(_floor(norm))[1], h, dy.data_ptr(), dh.data_ptr(), dweight.data_ptr(),
        dbias.data_ptr(), norm.bias.data_ptr(), h + dy.nbytes, exact, exact + 16 * num_channels,
    ]  # fmt: skip
    work, num_parts = _parts(dy)
    index, kind = pattern.rows.dtype, "values" if dx is None else "both"
    job = backward_job(pattern, values, x, dh, dx, gradient)
    if job.num_parts == num_parts == 1:
        run(f"block_{kind}", dy.dtype, index, 1, _one_after_the_other(job.args, args), work)
    else:
        run("norm_backward", dy.dtype, index, num_parts, args, work)
        start(f"linear_{kind}", pattern, job)
    return dx, gradient, dh, dweight, dbias


def _one_after_the_other(first: list[int], second: list[int]) -> list[int]:
    """Two jobs of one part each as the arguments of one, which begin with where the second job is."""
    return [len(first) + 5, 0, 1, *first, 0, 1, *second]


def _floor(norm: Norm) -> float:
    return 0.0 if norm.relu else -torch.inf


@lru_cache(maxsize=1024)
def _numbers(*numbers: float) -> tuple["array[float]", int]:
    """Numbers as the kernels read them, and where."""
    made = array("d", numbers)
    return made, made.buffer_info()[0]


def _parts(h: Tensor) -> tuple[int, int]:
    """How much work the normalisation is, and in how many parts."""
    work = _COST * h.numel()
    return work, min(num_threads_for(work), max(1, h.shape[1] // 64))
