"""What is pruned or grown as one: a weight, a k x k kernel or an output channel."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

Granularity = Literal["weight", "kernel", "channel"]
GRANULARITIES = get_args(Granularity)


@dataclass(frozen=True)
class Layer:
    """One sparse tensor and how it is cut into units: one unit for each index along `unit_dims`.

    Units are numbered along `unit_dims` in the order given, so that where every weight is a unit the numbering can
    follow the tensor's memory (also in channels_last) and its stretch of the row is a view, not a copy.
    """

    name: str
    shape: tuple[int, ...]
    unit_dims: tuple[int, ...]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.shape[dim] for dim in self.unit_dims)

    @cached_property
    def num_units(self) -> int:
        return prod(self.grid)

    @cached_property
    def num_weights(self) -> int:
        return prod(self.shape)

    @cached_property
    def unit_size(self) -> int:
        return self.num_weights // self.num_units

    @cached_property
    def is_fine(self) -> bool:
        """Whether every weight is a unit of its own."""
        return len(self.unit_dims) == len(self.shape)

    def flatten(self, tensor: Tensor) -> Tensor:
        """The units of a tensor of this layer's shape in row order: its elements, or the mean |element| of each unit.

        The mean, so that units of different sizes compare.
        """
        if self.is_fine:
            return tensor.permute(self.unit_dims).reshape(-1)
        others = [dim for dim in range(len(self.shape)) if dim not in self.unit_dims]
        return _wide(tensor).abs().mean(others).reshape(-1)

    def unflatten(self, stretch: Tensor) -> Tensor:
        """A stretch of the row seen in this layer's shape; where units are coarse, in a shape that broadcasts to it."""
        if self.is_fine:
            inverse = sorted(range(len(self.shape)), key=self.unit_dims.__getitem__)
            return stretch.view(self.grid).permute(inverse)
        return stretch.view([size if dim in self.unit_dims else 1 for dim, size in enumerate(self.shape)])

    def zero(self, tensor: Tensor, units: Tensor) -> None:
        """Set the given units of a tensor of this layer's shape to 0, in place."""
        grid = tensor.permute(self.unit_dims) if self.is_fine else tensor
        if self.is_fine and grid.is_contiguous():
            grid.view(-1).index_fill_(0, units, 0)
            return
        at: list[slice | Tensor] = [slice(None)] * tensor.ndim
        for dim, index in zip(self.unit_dims, torch.unravel_index(units, self.grid), strict=True):
            at[dim if not self.is_fine else self.unit_dims.index(dim)] = index
        grid[tuple(at)] = 0


def cut(name: str, tensor: Tensor, granularity: Granularity, output_dim: int = 0) -> Layer:
    """Cut a tensor into units of the given granularity."""
    dims = memory_order(tensor)
    if granularity == "kernel" and tensor.ndim > 2:
        dims = (0, 1)
    elif granularity == "channel" and tensor.ndim > 1:
        dims = (output_dim,)
    return Layer(name, tuple(tensor.shape), dims)


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's dimensions from the slowest to the fastest in memory.

    >>> memory_order(torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
