"""What rules may look at, and the few selections by which they pick units over the whole network.

Rules compute scores, selections pick. A selection is the only operation that knows how weights are stored and on which
device; ties always go to the lower position in the row, so that what is picked depends on neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import sub

import numpy as np
import torch
from torch import Tensor

from regrow.core.quantities import OfChunk, Quantities, Rule, as_numbers, largest_at_each_index, magnitude, refuse_nan
from regrow.core.quantities import Score as Score
from regrow.core.row import Chunk, Tally, check_finite, join
from regrow.core.row import Units as Units
from regrow.core.selections import (
    Active,
    Kernels,
    draw_free,
    exact_means,
    free_among,
    k_smallest,
    k_smallest_each,
    positions_of,
)


class Part(ABC):
    """A chunk at the moment of a rewiring, as a storage gives it; positions are those within the chunk."""

    chunk: Chunk
    active: Active
    counts: tuple[int, ...]
    kernels: Kernels

    @property
    @abstractmethod
    def places(self) -> Tensor:
        """Where the active units are, ascending."""

    @abstractmethod
    def of_active(self, name: str) -> Tensor:
        """A quantity of the active units; refused if it is not finite."""

    @abstractmethod
    def largest_free(self, counts: Sequence[int], score: Rule, among: Tensor | None) -> Tensor:
        """The free places of each layer with the largest scores, of some or of all."""

    @property
    def units(self) -> OfChunk:
        """The active units. Not kept: a cycle of references would outlive the rewiring."""
        return OfChunk(self.chunk, self.of_active, lambda: self.places)

    @cached_property
    def free(self) -> list[int]:
        return list(map(sub, self.chunk.sizes, self.counts))

    def below(self, bound: float, scores: Tensor | None) -> tuple[Tensor, list[int]]:
        scores = self.of_active("weight").abs() if scores is None else scores
        places = self.places.index_select(0, positions_of(scores < bound))
        return places, self.chunk.count_per_layer(places)

    def smallest(self, counts: Sequence[int], scores: Tensor | None) -> Tensor:
        scores = self.of_active("weight").abs() if scores is None else scores
        return self.places.index_select(0, k_smallest_each(scores, self.counts, counts))

    def spare(self, scores: Tensor | None, floor: Mapping[int, int]) -> tuple[Tensor, list[int]]:
        """Scores of the active units, infinite for the largest at each index of some dimensions; how many are not."""
        scores = magnitude(self.units) if scores is None else scores
        spared = largest_at_each_index(self.chunk, self.units, scores, floor, last=True)
        scores = scores.index_fill(0, spared, torch.inf)
        return scores, [int((own < torch.inf).sum()) for own in torch.split(scores, list(self.counts))]

    def largest(self, counts: Sequence[int], score: Rule, floor: Mapping[int, int]) -> Tensor:
        """The places of each layer with the largest scores, active or not."""
        raise ValueError("of the places that are not active nothing is stored that could be compared")

    def draw_free(self, counts: Sequence[int], key: int) -> Tensor:
        return draw_free(self.chunk, counts, self.free, self.active, key, self.kernels)


@dataclass(frozen=True)
class MaskedPart(Part):
    """A chunk of tensors that have an entry for every place, active or not.

    `active` flags its units. The rest is made when it is asked for and not kept, because it is large: `everywhere`, a
    quantity at all places, as one flat tensor of each layer or of all; `kept`, one that is there for active units only.
    """

    chunk: Chunk
    active: Tensor
    counts: tuple[int, ...]
    kernels: Kernels
    everywhere: Callable[[str], Sequence[Tensor]]
    kept: Mapping[str, Tensor]

    @cached_property
    def places(self) -> Tensor:
        return positions_of(self.active)

    def of_active(self, name: str) -> Tensor:
        if name in self.kept:
            check_finite(self.kept[name], self.chunk.layers, self.counts, f"{name}s")
            return self.kept[name]
        return self.of_all(name).index_select(0, self.places)

    def of_all(self, name: str) -> Tensor:
        flat = join(self.everywhere(name))
        if flat.is_floating_point():
            check_finite(flat, self.chunk.layers, self.chunk.sizes, f"{name.removeprefix('mean_')}s")
        return flat

    def below(self, bound: float, scores: Tensor | None) -> tuple[Tensor, list[int]]:
        if scores is not None:
            return super().below(bound, scores)
        if "below" in self.kernels:
            found = self.kernels["below"](self.chunk, self.everywhere("weight"), self.active, bound)
            if found is not None:
                return found  # type: ignore[no-any-return]
        is_below = self.of_all("weight").abs() < bound
        places = positions_of(is_below.logical_and_(self.active))
        return places, self.chunk.count_per_layer(places)

    def smallest(self, counts: Sequence[int], scores: Tensor | None) -> Tensor:
        if scores is None and "smallest" in self.kernels:
            found = self.kernels["smallest"](self.chunk, self.everywhere("weight"), self.active, counts)
            if found is not None:
                return found  # type: ignore[no-any-return]
        return super().smallest(counts, scores)

    def largest_free(self, counts: Sequence[int], score: Rule, among: Tensor | None) -> Tensor:
        low = self.lowness(score)
        if among is not None:
            free = free_among(self.active, among)
            room, low = self.chunk.count_per_layer(free), low.index_select(0, free)
            refuse_nan(low, self.chunk, room)
            return free.index_select(0, k_smallest_each(low, room, list(map(min, counts, room))))
        low.index_fill_(0, self.places, torch.inf)
        found = k_smallest_each(low, self.chunk.sizes, counts)
        if len(found) < sum(counts) or bool(self.active.index_select(0, found).any()):  # scores of NaN or -inf
            refuse_nan(low, self.chunk, self.chunk.sizes)
            low.clamp_(max=torch.finfo(low.dtype).max).index_fill_(0, self.places, torch.inf)
            found = k_smallest_each(low, self.chunk.sizes, counts)
        return found

    def largest(self, counts: Sequence[int], score: Rule, floor: Mapping[int, int]) -> Tensor:
        low = self.lowness(score)
        refuse_nan(low, self.chunk, self.chunk.sizes)
        if floor:
            first = largest_at_each_index(self.chunk, OfChunk(self.chunk, self.of_all), -low, floor)
            is_first = torch.zeros_like(low, dtype=torch.bool).index_fill_(0, first, True)
            low = low.clamp_(min=torch.finfo(low.dtype).min).masked_fill_(is_first, -torch.inf)
            counts = [
                max(n, int(own.count_nonzero())) for n, own in zip(counts, self.chunk.split(is_first), strict=True)
            ]
        return k_smallest_each(low, self.chunk.sizes, counts)

    def lowness(self, score: Rule) -> Tensor:
        """The scores of all places, negative, as a tensor that may be changed."""
        everything = OfChunk(self.chunk, self.of_all)
        scores = as_numbers(score(everything))
        return scores.neg() if everything.holds(scores) else scores.neg_()


class Evidence(Quantities):
    """The active units of the row, and the selections; `tally` and `step` say where the network stands.

    `groups` are the layers among which weights may move, where they may not move between all; `candidates`, where a
    method named places to look at, those of them that are free.
    """

    candidates: "Units | None" = None

    def __init__(
        self, parts: Sequence[Part], tally: Tally, step: int, groups: Sequence[Sequence[int]] | None = None
    ) -> None:
        self.tally, self.step, self.groups = tally, step, groups
        self._parts = parts
        self._layers: Sequence[int] | None = None
        self._smallest: dict[int, Units] = {}  # of all, by count: a method may ask again when it allots

    def of(self, layers: Sequence[int]) -> "Evidence":
        """The same for a group of layers, whose tally it has."""
        own = Evidence(self._parts, self.tally.of(layers), self.step)
        own._layers = layers
        return own

    def look_up(self, name: str) -> Tensor:
        return self._in_one([getattr(part.units, name) for part in self._parts])

    def index(self, dim: int) -> Tensor:
        return self._in_one([part.units.index(dim) for part in self._parts])

    # Among active units

    def below(self, bound: float, score: Score = None) -> Units:
        """All with a score less than the bound, strictly, which is rounded to float32 whatever a layer's precision."""
        bound = float(np.float32(bound))
        found = [part.below(bound, own) for part, own in zip(self._parts, self._scores(score), strict=True)]
        return Units(self._in_row([places for places, _ in found]), [n for _, counts in found for n in counts])

    def smallest(self, counts: Sequence[int], score: Score = None, floor: Mapping[int, int] | None = None) -> Units:
        """So many of each layer, with the smallest scores.

        `floor` {dimension: j} spares the j largest at each index of a dimension; where too few are left it takes fewer.
        """
        if not any(counts):
            return self.nothing
        scores = self._scores(score)
        if floor is not None:
            spared = [part.spare(own, floor) for part, own in zip(self._parts, scores, strict=True)]
            scores, counts = [own for own, _ in spared], list(map(min, counts, (n for _, left in spared for n in left)))
        found = [part.smallest(counts[part.chunk.own], own) for part, own in zip(self._parts, scores, strict=True)]
        return Units(self._in_row(found), counts)

    def smallest_of_all(self, count: int, score: Score = None) -> Units:
        """So many units of the network with the smallest scores, but never the last of a layer."""
        if score is None and count in self._smallest:
            return self._smallest[count]
        pairs = zip(self._parts, self._scores(score), strict=True)
        scores = self._in_one([magnitude(part.units) if own is None else own for part, own in pairs])
        active = [n for part in self._parts for n in part.counts]
        may_go = torch.ones_like(scores, dtype=torch.bool)
        for own, flags in zip(torch.split(scores, active), torch.split(may_go, active), strict=True):
            flags[len(own) - 1 - int(own.flip(0).argmax())] = False
        others = positions_of(may_go)
        taken = others[k_smallest(scores.index_select(0, others), min(max(count, 0), len(others)))]
        ends = torch.tensor(active, device=scores.device).cumsum(0)
        counts = torch.searchsorted(taken, ends).diff(prepend=ends.new_zeros(1)).tolist()
        found = Units(self.position.index_select(0, taken), counts)
        if score is None:
            self._smallest[count] = found
        return found

    def mean_of_each(self, score: Score) -> list[float]:
        """The mean score of each layer, the same however it is added up; of a group's evidence, of its layers."""
        means = []
        for part, own in zip(self._parts, self._numbers(magnitude if score is None else score), strict=True):
            found = exact_means(own, part.counts)
            if not all(map(isfinite, found)):
                refuse_nan(own, part.chunk, part.counts)
                check_finite(own, part.chunk.layers, part.counts, "scores")
            means += found
        return means if self._layers is None else [means[i] for i in self._layers]

    # Among free places, and among all

    def largest_free(self, counts: Sequence[int], score: Rule, among: Units | None = None) -> Units:
        """So many of each layer with the largest scores, of all free places or of those named; fewer if there are."""
        counts = list(map(min, counts, self.tally.free))
        named: Sequence[Tensor | None] = [None] * len(self._parts) if among is None else self.split(among)
        found = [p.largest_free(counts[p.chunk.own], score, some) for p, some in zip(self._parts, named, strict=True)]
        return Units(self._in_row(found), counts) if among is None else self._units(found)

    def free_among(self, named: Units) -> Units:
        """Those of some places that are free, each once, however often it is named."""
        return self._units([free_among(p.active, s) for p, s in zip(self._parts, self.split(named), strict=True)])

    def draw_free(self, counts: Sequence[int], key: int) -> Units:
        """So many of each layer, at random, a function of the key; fewer if there are."""
        counts = list(map(min, counts, self.tally.free))
        if not any(counts):
            return self.nothing
        found = [part.draw_free(counts[part.chunk.own], key) for part in self._parts]
        return Units(self._in_row(found), counts)

    def largest(
        self, counts: Sequence[int], score: Rule | None = None, floor: Mapping[int, int] | None = None
    ) -> Units:
        """So many of each layer with the largest scores, active or not, for a method with a "dense_step".

        `floor` {dimension: j} takes the j largest at each index of a dimension first, and more than so many if need be.
        """
        return self._units([p.largest(counts[p.chunk.own], score or magnitude, floor or {}) for p in self._parts])

    # Rows and chunks

    def spare_largest(self, chosen: Units, groups: Sequence[Sequence[int]], excesses: Sequence[int]) -> Units:
        """Less of some active units: of each group of layers the largest, as many weights as are an excess or more."""
        sizes = self.weight.index_select(0, torch.searchsorted(self.position, chosen.positions)).abs().cpu()
        return chosen.without_largest(sizes, self.tally.unit_sizes, groups, excesses)

    def counts_here(self, units: Units) -> Sequence[int]:
        """How many units of each layer are in a list of positions: not those on other ranks."""
        return units.counts

    @cached_property
    def nothing(self) -> Units:
        return Units(self._parts[0].chunk.bounds[:0], [0] * len(self.tally.active))

    def split(self, units: Units) -> list[Tensor]:
        """Units as places within each chunk, on its device."""
        sizes = [sum(units.counts[part.chunk.own]) for part in self._parts]
        pairs = zip(torch.split(units.positions, sizes), self._parts, strict=True)
        return [p.chunk.places(some).to(p.chunk.device) for some, p in pairs]

    def _in_row(self, places: Sequence[Tensor]) -> Tensor:
        """Places within each chunk as positions in the row."""
        return self._in_one([part.chunk.positions(some) for some, part in zip(places, self._parts, strict=True)])

    def _units(self, places: Sequence[Tensor]) -> Units:
        """Ascending places within each chunk, of which it is not known how many are in each layer."""
        pairs = zip(self._parts, places, strict=True)
        return Units(self._in_row(places), [n for part, own in pairs for n in part.chunk.count_per_layer(own)])

    def _in_one(self, pieces: Sequence[Tensor]) -> Tensor:
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.to(self._parts[0].chunk.device) for piece in pieces])

    def _scores(self, score: Score) -> list[Tensor | None]:
        """The scores of each chunk's active units; None where they are the magnitudes."""
        if score is None:
            return [None] * len(self._parts)
        scores = list(self._numbers(score))
        for own, part in zip(scores, self._parts, strict=True):
            refuse_nan(own, part.chunk, part.counts)
        return list(scores)

    def _numbers(self, score: Tensor | Rule) -> Iterator[Tensor]:
        """The scores of one chunk's active units after the other."""
        if isinstance(score, Tensor):
            pieces = torch.split(score, [sum(part.counts) for part in self._parts])
            return (as_numbers(own.to(part.chunk.device)) for own, part in zip(pieces, self._parts, strict=True))
        return (as_numbers(score(part.units)) for part in self._parts)
