"""Sparse layers to try the CPU kernels on, each with the dense weight that says what must come out."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from regrow.kernels.cpu.pattern import Pattern, make_pattern
from regrow.kernels.cpu.planes import Convolution

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class SparseLayer:
    """A pattern with its values in column order, and the same as a dense weight."""

    weight: Tensor
    pattern: Pattern
    values: Tensor
    rows: Tensor
    columns: Tensor

    def at_entries(self, tensor: Tensor) -> Tensor:
        """Of a tensor of the weight's shape what stands at the entries, in column order."""
        return tensor.flatten(1)[self.rows, self.columns]


def from_dense(weight: Tensor) -> SparseLayer:
    """The nonzeros of a weight."""
    matrix = weight.flatten(1)
    columns, rows = matrix.t().nonzero(as_tuple=True)
    pattern = make_pattern(rows, columns, *matrix.shape)
    return SparseLayer(weight, pattern, matrix[rows, columns], rows, columns)


def random_layer(*shape: int, density: float, seed: int = 0, dtype: torch.dtype = torch.float64) -> SparseLayer:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=dtype)
    return from_dense(weight * (torch.rand(shape, generator=generator) < density))


def random_tensor(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Convolution, tuple[int, ...]]:
    """A convolution and pictures that its kernel fits into."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))

    def numbers(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=dims, max_size=dims)))

    kernel, stride, padding, dilation = numbers(1, 4), numbers(1, 3), numbers(0, 4), numbers(1, 3)
    along = zip(numbers(0, 6), kernel, padding, dilation, strict=True)
    size = tuple(max(1, extra + d * (k - 1) + 1 - 2 * p) for extra, k, p, d in along)
    return Convolution(kernel, stride, padding, dilation, draw(st.sampled_from([1, 1, 2, 3]))), size
