"""Whether a layer is faster on its nonzeros or as a dense one: measured once, remembered, and saved with a run.

Two runs compute the same bits only if they compute in the same way. So what was chosen is part of a run's state, and a
choice that was loaded is never measured again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, log2, prod
from time import perf_counter
from typing import get_args

import torch
from torch import Tensor

from regrow.kernels.cpu.densify import densify, values_at
from regrow.kernels.cpu.functions import (
    Way,
    dense_forward,
    dense_input_gradient,
    dense_weight_gradient,
    sparse_backward,
    sparse_forward,
)
from regrow.kernels.cpu.pattern import Pattern, make_pattern
from regrow.kernels.cpu.planes import Convolution

_MOST_POSITIONS = 1 << 26  # a layer larger than this is never made dense: 256 MB of float32
_ROUNDS = 3
_measured: dict[tuple[str, bool], Way] = {}  # in this process, for all models


@dataclass(frozen=True)
class Case:
    """All that a choice depends on, rounded so that small changes do not call for another one."""

    num_rows: int
    num_columns: int
    log_density: float
    input_shape: tuple[int, ...]
    how: Convolution | None
    dtype: torch.dtype
    num_threads: int

    @cached_property
    def name(self) -> str:
        """As one line of text, for people and files."""
        kind = "linear" if self.how is None else f"conv {self.how}"
        shape = "x".join(map(str, self.input_shape))
        return (
            f"{kind} {self.num_rows}x{self.num_columns} density 2^{self.log_density:g}"
            f" input {shape} {self.dtype} {self.num_threads} threads"
        )


def case_of(pattern: Pattern, x: Tensor, how: Convolution | None = None) -> Case:
    """The case of a layer and its input, densities rounded to half powers of 2, samples to the next power of 2."""
    size = (pattern.num_rows, pattern.num_columns, pattern.num_entries)
    return _case(*size, x.shape, how, x.dtype, torch.get_num_threads())


@lru_cache(maxsize=1024)  # asked in every forward pass of every layer
def _case(
    num_rows: int,
    num_columns: int,
    num_entries: int,
    input_shape: tuple[int, ...],
    how: Convolution | None,
    dtype: torch.dtype,
    num_threads: int,
) -> Case:
    num_positions = num_rows * num_columns
    log_density = round(2 * log2(max(num_entries, 1) / num_positions)) / 2 if num_positions else 0.0
    split = len(input_shape) - 1 if how is None else 1
    samples, rest = prod(input_shape[:split]), input_shape[split:]
    rounded = 1 << ceil(log2(samples)) if samples else 0
    return Case(num_rows, num_columns, log_density, (rounded, *rest), how, dtype, num_threads)


@dataclass
class Choices:
    """Which way each case is computed. `forced` decides for all of them, and nothing is measured then.

    Where nobody `goes_back`, as in a model that is not trained, forward passes alone are measured.
    """

    forced: Way | None = None
    made: dict[str, Way] = field(default_factory=dict)
    goes_back: bool = True

    def way(self, pattern: Pattern, x: Tensor, how: Convolution | None = None) -> Way:
        """The way for this layer and this input; the first time it is asked for, both are tried."""
        if self.forced is not None:
            return self.forced
        case = case_of(pattern, x, how)
        way = self.made.get(case.name)
        if way is None:
            way = self.made[case.name] = _fastest(case, self.goes_back)
        return way

    def state(self) -> dict[str, str]:
        """What was chosen, as plain text."""
        return dict(self.made)

    def load(self, state: Mapping[str, str]) -> None:
        """Take over what was chosen elsewhere, and forget what was chosen here."""
        ways = {way: way for way in get_args(Way)}
        if unknown := set(state.values()) - set(ways):
            raise ValueError(f'a layer is computed "sparse" or "dense", not {sorted(unknown)}; load an unchanged state')
        self.made = {name: ways[way] for name, way in state.items()}


def _fastest(case: Case, goes_back: bool) -> Way:
    asked = case.name, goes_back
    if asked not in _measured:
        is_large = case.num_rows * case.num_columns > _MOST_POSITIONS
        _measured[asked] = "sparse" if is_large or 0 in case.input_shape else _measure(case, goes_back)
    return _measured[asked]


def _measure(case: Case, goes_back: bool) -> Way:
    """Time both ways on random weights and inputs, in turns; the best of a few rounds counts."""
    generator = torch.Generator().manual_seed(0)
    pattern = _random_pattern(case, generator)
    values = torch.randn(pattern.num_entries, dtype=case.dtype, generator=generator, device="cpu")
    x = torch.randn(case.input_shape, dtype=case.dtype, generator=generator, device="cpu")
    best: dict[Way, float] = {}
    for attempt in range(1 + _ROUNDS):  # the first compiles and warms up
        for way in get_args(Way):
            compute = _compute_sparse if way == "sparse" else _compute_dense
            start = perf_counter()
            compute(pattern, values, x, case.how, goes_back)
            if attempt:
                best[way] = min(best.get(way, float("inf")), perf_counter() - start)
    return min(best, key=best.__getitem__)


def _compute_sparse(
    pattern: Pattern, values: Tensor, x: Tensor, how: Convolution | None, goes_back: bool = True
) -> None:
    """Forward and backward, as a packed layer computes them."""
    y = sparse_forward(pattern, values, x, None, how)
    if goes_back:
        sparse_backward(pattern, values, x, y, how)


def _compute_dense(
    pattern: Pattern, values: Tensor, x: Tensor, how: Convolution | None, goes_back: bool = True
) -> None:
    """Likewise: its weight is made for each use of it."""
    kernel_size = () if how is None else how.kernel_size
    shape = (pattern.num_rows, pattern.num_columns // prod(kernel_size), *kernel_size)
    y = dense_forward(densify(pattern, values).view(shape), x, None, how)
    if goes_back:
        dense_input_gradient(densify(pattern, values).view(shape), x, y, how)
        values_at(pattern, dense_weight_gradient(shape, x, y, how).flatten(1))


def _random_pattern(case: Case, generator: torch.Generator) -> Pattern:
    is_active = torch.rand(case.num_columns, case.num_rows, generator=generator, device="cpu") < 2**case.log_density
    columns, rows = is_active.nonzero(as_tuple=True)
    return make_pattern(rows, columns, case.num_rows, case.num_columns)
