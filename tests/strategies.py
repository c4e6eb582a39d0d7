"""Rows to try the rules on.

Worked examples are written with `row`, where None stands for a free place; properties draw theirs from `rows`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from hypothesis import strategies as st
from torch import Tensor

from regrow.core import rewire as rewiring
from regrow.core.evidence import Evidence, MaskedPart, Part, Units
from regrow.core.row import Chunk, Tally, cut_into_chunks
from regrow.core.selections import Listed, positions_of
from regrow.core.units import Block, Granularity, Layer, cut
from regrow.methods import Memory, Method
from regrow.storage.packed.part import ListedPart

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """A topology with its evidence: per layer a tensor of weights, and flat over its units the rest, by name."""

    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    active: tuple[Tensor, ...]
    beside: Mapping[str, Sequence[Tensor]]
    tally: Tally

    @property
    def budget(self) -> int:
        return self.tally.budget

    @property
    def counts(self) -> tuple[int, ...]:
        return self.tally.active

    @property
    def starts(self) -> list[int]:
        """The position of each layer's first unit."""
        return [sum(layer.num_units for layer in self.layers[:i]) for i in range(len(self.layers))]

    def free_places(self) -> list[list[int]]:
        return [(~flags).nonzero().flatten().tolist() for flags in self.active]

    def flat(self, name: str) -> list[Tensor]:
        """A quantity of all units, layer by layer."""
        if name == "weight":
            return [layer.flatten(tensor) for layer, tensor in zip(self.layers, self.tensors, strict=True)]
        return list(self.beside[name])

    def evidence(
        self,
        step: int = 100,
        *,
        limit: int | None = None,
        is_listed: bool = False,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> Evidence:
        """What rules see: chunks of at most `limit` units, with an entry for every place or for the active alone."""
        return Evidence(self.parts(limit, is_listed), self.tally, step, groups)

    def in_all_ways(self, limit: int, step: int = 100) -> list[Evidence]:
        """The same evidence, cut or not, with an entry for every place or for the active units alone."""
        return [
            self.evidence(step, limit=cut_, is_listed=is_listed)
            for cut_ in (None, limit)
            for is_listed in (False, True)
        ]

    def parts(self, limit: int | None = None, is_listed: bool = False) -> list[Part]:
        chunks = cut_into_chunks(self.layers, [CPU] * len(self.layers), limit)
        return [self._listed(chunk) if is_listed else self._masked(chunk) for chunk in chunks]

    def _masked(self, chunk: Chunk) -> MaskedPart:
        return MaskedPart(
            chunk=chunk,
            active=torch.cat(list(chunk.of(self.active))),
            counts=chunk.of(self.counts),
            kernels={},
            everywhere=lambda name: chunk.of(self.flat(name)),
            kept={},
        )

    def _listed(self, chunk: Chunk) -> ListedPart:
        flags = torch.cat(list(chunk.of(self.active)))

        def candidates() -> tuple[Tensor, Sequence[int], Tensor]:
            places = positions_of(~flags)
            gradient = torch.cat(list(chunk.of(self.flat("gradient"))))
            return places, chunk.count_per_layer(places), gradient[places]

        return ListedPart(
            chunk=chunk,
            active=Listed(positions_of(flags)),
            counts=chunk.of(self.counts),
            kernels={},
            stored=lambda name: torch.cat(list(chunk.of(self.flat(name))))[flags],
            candidates=candidates,
        )

    def units(self, *places: Sequence[int]) -> Units:
        """Units by their places within each layer."""
        positions = [start + place for start, own in zip(self.starts, places, strict=True) for place in own]
        return Units(torch.tensor(positions, dtype=torch.int64), [len(own) for own in places])

    def places(self, units: Units) -> list[list[int]]:
        """The other way around, ascending."""
        spans = [(start, start + layer.num_units) for start, layer in zip(self.starts, self.layers, strict=True)]
        positions = sorted(units.positions.tolist())
        return [[place - start for place in positions if start <= place < end] for start, end in spans]


def row(
    *layers: Sequence[float | None],
    goal: Sequence[int] | None = None,
    target: int | None = None,
    **beside: Sequence[Sequence[float] | str],
) -> Row:
    """A row of single weights, written out: None is a free place; signs as strings such as "++-+"."""
    tensors = [torch.tensor([weight or 0.0 for weight in layer]) for layer in layers]
    active = [torch.tensor([weight is not None for weight in layer]) for layer in layers]
    made = {name: [_written(own) for own in of_layers] for name, of_layers in beside.items()}
    return make_row(tensors, active, goal=goal, target=target, **made)


def _written(numbers: Sequence[float] | str) -> Tensor:
    if isinstance(numbers, str):
        return torch.tensor([sign == "+" for sign in numbers])
    return torch.tensor([float(number) for number in numbers])


def make_row(
    tensors: Sequence[Tensor],
    active: Sequence[Tensor],
    *,
    granularity: Granularity = "weight",
    budget: int | None = None,
    goal: Sequence[int] | None = None,
    target: int | None = None,
    **beside: Sequence[Tensor],
) -> Row:
    """A row of tensors; `active`, `gradient`, `mean_gradient` and `sign` have one entry per unit."""
    layers = tuple(cut(f"layer{i}", tensor, granularity) for i, tensor in enumerate(tensors))
    counts = tuple(int(flags.sum()) for flags in active)
    held = sum(n * layer.unit_size for n, layer in zip(counts, layers, strict=True))
    tally = Tally(
        unit_sizes=tuple(layer.unit_size for layer in layers),
        num_units=tuple(layer.num_units for layer in layers),
        active=counts,
        goal=tuple(goal or counts),
        target=target or budget or held,
        budget=budget or held,
        pruned=(0,) * len(layers),
    )
    unsaid = {
        "gradient": [torch.zeros(layer.num_units) for layer in layers],
        "mean_gradient": [torch.zeros(layer.num_units) for layer in layers],
        "sign": [torch.ones(layer.num_units, dtype=torch.bool) for layer in layers],
    }
    return Row(layers, tuple(tensors), tuple(active), unsaid | beside, tally)


@dataclass(frozen=True)
class Decision:
    """What a rewiring decided, as places within each layer, ascending."""

    gone: list[list[int]]
    come: list[list[int]]
    pruned: list[int]
    grown: list[int]
    memory: Memory


def decide(
    method: Method,
    row: Row,
    *,
    step: int = 100,
    seed: int = 0,
    memory: Memory | None = None,
    limit: int | None = None,
    is_listed: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
) -> Decision:
    """Let a method rewire a row, cut into chunks of at most `limit` units."""
    row = replace(row, tally=replace(row.tally, budget=method.budget_at(step, row.tally)))
    evidence = row.evidence(step, limit=limit, is_listed=is_listed, groups=groups)
    plan = rewiring.plan(method, evidence, seed, memory or method.first_memory())
    return Decision(
        row.places(plan.pruned),
        row.places(plan.grown),
        list(plan.pruned.counts),
        list(plan.grown.counts),
        plan.memory,
    )


def with_pruned(tally: Tally, *pruned: int) -> Tally:
    """A tally after the prune step."""
    return replace(tally, pruned=pruned)


SHAPES = {
    "weight": st.sampled_from([(1,), (8,), (3, 4), (2, 3, 2), (2, 2, 3, 3), (5, 13)]),
    "kernel": st.sampled_from([(3, 4), (2, 3, 2), (2, 2, 3, 3), (4, 1, 5, 5)]),
    "channel": st.sampled_from([(3, 4), (2, 3, 2), (4, 2, 3, 3), (7, 1)]),
    Block(2, 2): st.sampled_from([(2, 2), (4, 6), (2, 8, 3), (4, 4, 3, 3)]),
}


@st.composite
def rows(draw: st.DrawFn, granularity: Granularity = "weight", max_layers: int = 4) -> Row:
    """Rows of a few layers, full ones and nearly empty ones among them, with many equal weights and gradients."""
    shapes = draw(st.lists(SHAPES[granularity], min_size=1, max_size=max_layers))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensors, active = [], []
    beside: dict[str, list[Tensor]] = {"gradient": [], "mean_gradient": [], "sign": []}
    for i, shape in enumerate(shapes):
        tensor = torch.randint(-6, 7, shape, generator=generator) / 4
        num_units = cut(f"layer{i}", tensor, granularity).num_units
        flags = torch.zeros(num_units, dtype=torch.bool)
        flags[torch.randperm(num_units, generator=generator)[: draw(st.integers(1, num_units))]] = True
        tensors.append(tensor)
        active.append(flags)
        for name in ("gradient", "mean_gradient"):
            beside[name].append(torch.randint(-4, 5, (num_units,), generator=generator) / 2)
        beside["sign"].append(torch.randint(0, 2, (num_units,), generator=generator) == 1)
    layers = [cut("", tensor, granularity) for tensor in tensors]
    held = sum(int(flags.sum()) * layer.unit_size for flags, layer in zip(active, layers, strict=True))
    largest = max(layer.unit_size for layer in layers)
    spare = draw(st.integers(0, min(largest - 1, sum(prod(shape) for shape in shapes) - held)))
    return make_row(tensors, active, granularity=granularity, budget=held + spare, **beside)


any_rows = st.sampled_from(list(SHAPES)).flatmap(lambda granularity: rows(granularity=granularity))
coarse_rows = st.sampled_from([key for key in SHAPES if key != "weight"]).flatmap(
    lambda granularity: rows(granularity=granularity)
)
