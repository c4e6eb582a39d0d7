"""Rows to try the rules on.

Worked examples are written with `row`, where None stands for a free place; properties draw theirs from `rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from hypothesis import strategies as st
from torch import Tensor

from regrow.core import rewire as rewiring
from regrow.core.evidence import FlaggedStretch
from regrow.core.row import Stretch, Tally, cut_into_chunks
from regrow.core.units import Granularity, Layer, cut
from regrow.methods.method import Memory, Method

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """A topology with its evidence: per layer a tensor of weights, and flat over its units the rest."""

    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    active: tuple[Tensor, ...]
    scores: tuple[Tensor, ...]
    signs: tuple[Tensor, ...]
    budget: int
    goal: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(int(flags.sum()) for flags in self.active)

    def stretches(self, limit: int | None = None) -> list[Stretch]:
        return [self._stretch(chunk) for chunk in cut_into_chunks(self.layers, [CPU] * len(self.layers), limit)]

    def _stretch(self, chunk) -> Stretch:
        return FlaggedStretch(
            chunk=chunk,
            active=torch.cat(list(chunk.of(self.active))),
            counts=chunk.of(self.counts),
            pieces=lambda: [layer.flatten(t) for layer, t in zip(chunk.layers, chunk.of(self.tensors), strict=True)],
            signs=lambda: torch.cat(list(chunk.of(self.signs))),
            scores=lambda: torch.cat(list(chunk.of(self.scores))),
        )

    @property
    def tally(self) -> Tally:
        return Tally(
            unit_sizes=tuple(layer.unit_size for layer in self.layers),
            num_units=tuple(layer.num_units for layer in self.layers),
            active=self.counts,
            goal=self.goal,
            budget=self.budget,
            pruned=(0,) * len(self.layers),
        )

    def free_places(self) -> list[list[int]]:
        return [(~flags).nonzero().flatten().tolist() for flags in self.active]


def row(
    *layers: Sequence[float | None],
    scores: Sequence[Sequence[float]] | None = None,
    signs: Sequence[str] | None = None,
    goal: Sequence[int] | None = None,
) -> Row:
    """A row of single weights, written out: None is a free place; signs as strings such as "++-+"."""
    tensors = [torch.tensor([weight or 0.0 for weight in layer]) for layer in layers]
    active = [torch.tensor([weight is not None for weight in layer]) for layer in layers]
    return make_row(
        tensors,
        active,
        scores=None if scores is None else [torch.tensor(layer) for layer in scores],
        signs=None if signs is None else [torch.tensor([sign == "+" for sign in layer]) for layer in signs],
        goal=goal,
    )


def make_row(
    tensors: Sequence[Tensor],
    active: Sequence[Tensor],
    *,
    granularity: Granularity = "weight",
    scores: Sequence[Tensor] | None = None,
    signs: Sequence[Tensor] | None = None,
    budget: int | None = None,
    goal: Sequence[int] | None = None,
) -> Row:
    """A row of tensors; `active`, `scores` and `signs` have one entry per unit."""
    layers = tuple(cut(f"layer{i}", tensor, granularity) for i, tensor in enumerate(tensors))
    counts = tuple(int(flags.sum()) for flags in active)
    return Row(
        layers=layers,
        tensors=tuple(tensors),
        active=tuple(active),
        scores=tuple(scores or (torch.zeros(layer.num_units) for layer in layers)),
        signs=tuple(signs or (torch.ones(layer.num_units, dtype=torch.bool) for layer in layers)),
        budget=budget or sum(n * layer.unit_size for n, layer in zip(counts, layers, strict=True)),
        goal=tuple(goal or counts),
    )


@dataclass(frozen=True)
class Decision:
    """What a rewiring decided, as places within each layer, ascending."""

    gone: list[list[int]]
    come: list[list[int]]
    pruned: list[int]
    grown: list[int]
    memory: Memory


def decide(
    method: Method, row: Row, *, step: int = 100, seed: int = 0, memory: Memory | None = None, limit: int | None = None
) -> Decision:
    """Let a method rewire a row, cut into chunks of at most `limit` units."""
    stretches = row.stretches(limit)
    plan = rewiring.plan(method, stretches, row.tally, step, seed, memory or method.first_memory())
    return Decision(
        _within_layers(stretches, plan.gone),
        _within_layers(stretches, plan.come),
        plan.pruned,
        plan.grown,
        plan.memory,
    )


def _within_layers(stretches: Sequence[Stretch], places: Sequence[Tensor]) -> list[list[int]]:
    found = []
    for stretch, where in zip(stretches, places, strict=True):
        for start, end in zip(stretch.chunk.offsets, stretch.chunk.offsets[1:], strict=False):
            found.append(sorted(place - start for place in where.tolist() if start <= place < end))
    return found


def with_pruned(tally: Tally, *pruned: int) -> Tally:
    """A tally after the prune step."""
    return replace(tally, pruned=pruned)


SHAPES = {
    "weight": st.sampled_from([(1,), (8,), (3, 4), (2, 3, 2), (2, 2, 3, 3), (5, 13)]),
    "kernel": st.sampled_from([(3, 4), (2, 3, 2), (2, 2, 3, 3), (4, 1, 5, 5)]),
    "channel": st.sampled_from([(3, 4), (2, 3, 2), (4, 2, 3, 3), (7, 1)]),
}


@st.composite
def rows(draw: st.DrawFn, granularity: Granularity = "weight", max_layers: int = 4) -> Row:
    """Rows of a few layers, full ones and nearly empty ones among them, with many equal weights and scores."""
    shapes = draw(st.lists(SHAPES[granularity], min_size=1, max_size=max_layers))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensors, active, scores, signs = [], [], [], []
    for i, shape in enumerate(shapes):
        tensor = torch.randint(-6, 7, shape, generator=generator) / 4
        num_units = cut(f"layer{i}", tensor, granularity).num_units
        flags = torch.zeros(num_units, dtype=torch.bool)
        flags[torch.randperm(num_units, generator=generator)[: draw(st.integers(1, num_units))]] = True
        tensors.append(tensor)
        active.append(flags)
        scores.append(torch.randint(0, 5, (num_units,), generator=generator) / 2)
        signs.append(torch.randint(0, 2, (num_units,), generator=generator) == 1)
    full = [cut("", tensor, granularity) for tensor in tensors]
    held = sum(int(flags.sum()) * layer.unit_size for flags, layer in zip(active, full, strict=True))
    largest = max(layer.unit_size for layer in full)
    spare = draw(st.integers(0, min(largest - 1, sum(prod(shape) for shape in shapes) - held)))
    return make_row(tensors, active, granularity=granularity, scores=scores, signs=signs, budget=held + spare)
