"""What is pruned or grown as one: a weight, a k x k kernel, an output channel or a block."""

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from regrow.core.magnitudes import mean_of, scale_of, summands

Named = Literal["weight", "kernel", "channel"]


@dataclass(frozen=True)
class Block:
    """`rows` x `columns` of a matrix; in a convolution as many whole kernels, output x input channels.

    >>> str(Block(4, 16))
    '4x16'
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        for size in (self.rows, self.columns):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"a block has whole numbers of rows and columns, got {self.rows!r} x {self.columns!r}")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


Granularity = Named | Block


def granularity_of(text: object) -> Granularity:
    """A granularity as it is written in files and on command lines: "weight", "kernel", "channel" or such as "4x4"."""
    if isinstance(text, Block) or text in get_args(Named):
        return text  # type: ignore[return-value]
    size = re.fullmatch(r"(\d+)x(\d+)", text) if isinstance(text, str) else None
    if size is None:
        raise ValueError(f"granularity must be one of {get_args(Named)} or a block such as '4x4', got {text!r}")
    return Block(int(size[1]), int(size[2]))


@dataclass(frozen=True)
class Layer:
    """One sparse tensor and how it is cut into units, all of one shape.

    Units are numbered along `unit_dims`, the slowest dimension first, so that where every weight is a unit the
    numbering can follow the tensor's memory (also in channels_last) and its part of the row is a view, not a copy.
    """

    name: str
    shape: tuple[int, ...]
    unit_shape: tuple[int, ...]
    unit_dims: tuple[int, ...]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """How many units there are along each of `unit_dims`."""
        return tuple(self.shape[dim] // self.unit_shape[dim] for dim in self.unit_dims)

    @cached_property
    def num_units(self) -> int:
        return prod(self.grid)

    @cached_property
    def num_weights(self) -> int:
        return prod(self.shape)

    @cached_property
    def unit_size(self) -> int:
        return prod(self.unit_shape)

    @cached_property
    def is_fine(self) -> bool:
        """Whether every weight is a unit of its own."""
        return self.unit_size == 1

    def by_unit(self, tensor: Tensor) -> Tensor:
        """A view of a tensor of this layer's shape: first the grid of units, then the dimensions within each."""
        if self.is_fine:
            return tensor.permute(self.unit_dims)
        for dim in reversed(range(tensor.ndim)):
            tensor = torch.unflatten(tensor, dim, (-1, self.unit_shape[dim]))
        return tensor.permute([2 * dim for dim in self.unit_dims] + [2 * dim + 1 for dim in range(len(self.shape))])

    def flatten(self, tensor: Tensor) -> Tensor:
        """The units of a tensor of this layer's shape in row order: its elements, or the mean |element| of each unit.

        The mean, so that units of different sizes compare.
        """
        if self.is_fine:
            return tensor.permute(self.unit_dims).reshape(-1)
        sizes = self.by_unit(tensor.abs().double())
        scale = scale_of(sizes.amax(self._within, keepdim=True))
        total = summands(sizes, scale, self.unit_size).sum(self._within).reshape(-1)
        return mean_of(total, scale.reshape(-1), self.unit_size).to(wide(tensor).dtype)

    def unflatten(self, units: Tensor) -> Tensor:
        """Numbers of the units, flat, for every weight: a view where every weight is a unit."""
        if self.is_fine:
            return units.view(self.grid).permute(self._inverse)
        made = units.new_empty(self.shape)
        self.spread(units, made)
        return made

    def spread(self, units: Tensor, into: Tensor) -> None:
        """Write numbers of the units, flat, to every weight of a tensor of this layer's shape."""
        grid = self.by_unit(into)
        grid.copy_(units.view(self.grid + (1,) * (grid.ndim - len(self.grid))))

    def reduce(self, mask: Tensor) -> Tensor:
        """Which units, flat, hold anything of a mask of this layer's shape."""
        flags = self.by_unit(mask)
        return (flags if self.is_fine else flags.amax(self._within)).reshape(-1)

    def cuts_no_unit(self, mask: Tensor) -> bool:
        """Whether a mask of this layer's shape is the same throughout every unit."""
        flags = self.by_unit(mask)
        return self.is_fine or bool((flags.amax(self._within) == flags.amin(self._within)).all())

    def put(self, tensor: Tensor, units: Tensor, value: float | Tensor) -> None:
        """Set the given units of a tensor of this layer's shape, in place."""
        if isinstance(value, Tensor) and not self.is_fine:
            value = value.view(-1, *(1,) * len(self.shape))
        self.by_unit(tensor)[torch.unravel_index(units, self.grid)] = value

    def index(self, units: Tensor, dim: int) -> Tensor:
        """Where some units lie along a dimension of the tensor, counted in units."""
        if dim not in self.unit_dims:
            raise ValueError(f"{self.name} of shape {self.shape} has no dimension {dim}")
        return torch.unravel_index(units, self.grid)[self.unit_dims.index(dim)]

    @cached_property
    def _inverse(self) -> list[int]:
        return sorted(range(len(self.shape)), key=self.unit_dims.__getitem__)

    @cached_property
    def _within(self) -> list[int]:
        return list(range(len(self.shape), 2 * len(self.shape)))


def cut(name: str, tensor: Tensor, granularity: Granularity, output_dim: int = 0) -> Layer:
    """Cut a tensor into units of the given granularity; blocks must divide it."""
    shape, dims = tuple(tensor.shape), tuple(range(tensor.ndim))
    unit = _unit_shape(shape, granularity, output_dim)
    if any(size % step for size, step in zip(shape, unit, strict=True)):
        raise ValueError(f"{name} of shape {shape} cannot be cut into blocks of {granularity}; leave it out of layers")
    return Layer(name, shape, unit, memory_order(tensor) if prod(unit) == 1 else dims)


def is_cuttable(tensor: Tensor, granularity: Granularity, output_dim: int = 0) -> bool:
    """Whether units of the given granularity divide a tensor."""
    unit = _unit_shape(tuple(tensor.shape), granularity, output_dim)
    return all(size % step == 0 for size, step in zip(tensor.shape, unit, strict=True))


def _unit_shape(shape: tuple[int, ...], granularity: Granularity, output_dim: int) -> tuple[int, ...]:
    if isinstance(granularity, Block):
        if len(shape) < 2:
            return tuple(size + 1 for size in shape)  # no block fits into a vector
        sides = {output_dim: granularity.rows, 1 - output_dim: granularity.columns}
        return tuple(sides.get(dim, size) for dim, size in enumerate(shape))
    if granularity == "kernel" and len(shape) > 2:
        return (1, 1, *shape[2:])
    if granularity == "channel" and len(shape) > 1:
        return tuple(1 if dim == output_dim else size for dim, size in enumerate(shape))
    return (1,) * len(shape)


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's dimensions from the slowest to the fastest in memory.

    >>> memory_order(torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))


def wide(tensor: Tensor) -> Tensor:
    """With at least single precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
