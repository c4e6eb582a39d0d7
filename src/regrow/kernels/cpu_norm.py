"""Batch normalisation of what a sparse linear layer gives, with or without ReLU, on a CPU."""

from array import array

import torch
from torch import Tensor

from regrow.kernels.team import num_threads_for, run

_COST = 8  # of a number here, in multiplications elsewhere


def norm_forward(
    h: Tensor, weight: Tensor, bias: Tensor, means: tuple[Tensor, Tensor], epsilon: float, momentum: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """(y, what the way back needs) of a batch [samples, channels]; moves `means`, the running mean and variance."""
    num_samples, num_channels = h.shape
    y, kept = torch.empty_like(h), h.new_empty(5 * num_channels)
    sums = _sums(num_channels)
    settings = array("d", [epsilon, momentum, 0 if relu else -torch.inf])
    args = [num_samples, num_channels, settings.buffer_info()[0], h.data_ptr(), y.data_ptr(), weight.data_ptr()]
    args += [bias.data_ptr(), means[0].data_ptr(), means[1].data_ptr(), kept.data_ptr(), sums.buffer_info()[0]]
    _run("norm_forward", h, args)
    return y, kept


def norm_backward(h: Tensor, dy: Tensor, bias: Tensor, kept: Tensor, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of h, weight and bias."""
    num_samples, num_channels = h.shape
    dy = dy.contiguous()
    dh, dweight, dbias = torch.empty_like(h), h.new_empty(num_channels), h.new_empty(num_channels)
    sums = _sums(2 * num_channels)
    settings = array("d", [0 if relu else -torch.inf])
    args = [num_samples, num_channels, settings.buffer_info()[0], h.data_ptr(), dy.data_ptr(), dh.data_ptr()]
    args += [dweight.data_ptr(), dbias.data_ptr(), bias.data_ptr(), kept.data_ptr(), sums.buffer_info()[0]]
    _run("norm_backward", h, args)
    return dh, dweight, dbias


def _sums(num: int) -> "array[float]":
    return array("d", bytes(8 * num))


def _run(kernel: str, h: Tensor, args: list[int]) -> None:
    work = _COST * h.numel()
    num_parts = min(num_threads_for(work), max(1, h.shape[1] // 64))
    run(kernel, h.dtype, torch.int32, num_parts, args, work)
