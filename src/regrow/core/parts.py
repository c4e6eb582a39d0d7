"""What a storage gives of the row at the moment of a rewiring: chunks whose units have quantities that rules score.

Two ways a chunk can look in memory: with an entry for every place, or with the active units alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regrow.core.row import Chunk, check_finite, join
from regrow.core.selections import Active, Kernels, Listed, draw_free, k_smallest_each, positions_of


class Quantities(ABC):
    """What is known of some units, as flat tensors in the order of `position`.

    Of a unit of several weights, weight and gradients are mean magnitudes.
    """

    @cached_property
    def weight(self) -> Tensor:
        return self.look_up("weight")

    @cached_property
    def gradient(self) -> Tensor:
        """Of the last step: unscaled, without L1; before clipping where `mask_gradients()` came first."""
        return self.look_up("gradient")

    @cached_property
    def mean_gradient(self) -> Tensor:
        """The running mean of the gradients, by the method's `gradient_decay`."""
        return self.look_up("mean_gradient")

    @cached_property
    def sign(self) -> Tensor:
        """The side of zero a weight belongs to: true for the positive one."""
        return self.look_up("sign")

    @cached_property
    def position(self) -> Tensor:
        """Where the units are in the row."""
        return self.look_up("position")

    @abstractmethod
    def look_up(self, name: str) -> Tensor: ...

    @abstractmethod
    def index(self, dim: int) -> Tensor:
        """Where the units lie along a dimension of their tensors, counted in units."""


class OfChunk(Quantities):
    """Those of some units of a chunk, or of all, at `places` in it; what a score is a function of."""

    def __init__(
        self, chunk: Chunk, look_up: Callable[[str], Tensor], places: Callable[[], Tensor] | None = None
    ) -> None:
        self._chunk, self._look_up = chunk, look_up
        self._places = places or (lambda: torch.arange(chunk.num_units, device=chunk.device))

    def look_up(self, name: str) -> Tensor:
        return self._places() + self._chunk.start if name == "position" else self._look_up(name)

    def index(self, dim: int) -> Tensor:
        places = self._places()
        layer_of = torch.searchsorted(self._chunk.ends, places, right=True)
        found = torch.empty_like(places)
        for i, layer in enumerate(self._chunk.layers):
            found[layer_of == i] = layer.index(places[layer_of == i] - self._chunk.offsets[i], dim)
        return found

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that was looked up here, which nobody may change."""
        seen = (own for own in self.__dict__.values() if isinstance(own, Tensor))
        return any(own.data_ptr() == tensor.data_ptr() for own in seen)


Rule = Callable[[OfChunk], Tensor]
"""A score as a function of a chunk's units: elementwise."""


def magnitude(units: OfChunk) -> Tensor:
    return units.weight.abs()


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
        return [size - count for size, count in zip(self.chunk.sizes, self.counts, strict=True)]

    def below(self, bound: float, scores: Tensor | None) -> tuple[Tensor, list[int]]:
        scores = self.units.weight.abs() if scores is None else scores
        places = self.places.index_select(0, positions_of(scores < bound))
        return places, self.chunk.count_per_layer(places)

    def smallest(self, counts: Sequence[int], scores: Tensor | None) -> Tensor:
        scores = self.units.weight.abs() if scores is None else scores
        return self.places.index_select(0, k_smallest_each(scores, self.counts, counts))

    def spare(self, scores: Tensor | None, floor: Mapping[int, int]) -> Tensor:
        """Scores of the active units, infinite for the largest at each index of some dimensions."""
        scores = magnitude(self.units) if scores is None else scores
        return scores.index_fill(0, largest_at_each_index(self.chunk, self.units, scores, floor), torch.inf)

    def largest(self, counts: Sequence[int], score: Rule, floor: Mapping[int, int]) -> Tensor:
        """The places of each layer with the largest scores, active or not."""
        raise ValueError("of the places that are not active nothing is stored that could be compared")

    def draw_free(self, counts: Sequence[int], key: int) -> Tensor:
        return draw_free(self.chunk, counts, self.free, self.active, key, self.kernels)


def largest_at_each_index(chunk: Chunk, units: OfChunk, scores: Tensor, floor: Mapping[int, int]) -> Tensor:
    """Which of some units are among the largest of their layer at an index of a dimension; of equal ones the last."""
    layer_of = torch.searchsorted(chunk.ends, units.position - chunk.start, right=True)
    by_score = scores.sort(stable=True).indices
    found = []
    for dim, count in floor.items():
        group = layer_of * (1 << 40) + units.index(dim)
        order = by_score[group[by_score].sort(stable=True).indices]  # by group, and within it by score
        ends = torch.searchsorted(group[order], group[order], right=True)
        found.append(order[ends - torch.arange(len(order), device=order.device) <= count])
    return torch.cat(found)


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
        low = self._lowness(score)
        if among is None:
            low.index_fill_(0, self.places, torch.inf)
            return k_smallest_each(low, self.chunk.sizes, counts)
        free = among.index_select(0, positions_of(~self.active.index_select(0, among)))
        room = self.chunk.count_per_layer(free)
        return free.index_select(0, k_smallest_each(low.index_select(0, free), room, list(map(min, counts, room))))

    def largest(self, counts: Sequence[int], score: Rule, floor: Mapping[int, int]) -> Tensor:
        low = self._lowness(score)
        if floor:
            first = largest_at_each_index(self.chunk, OfChunk(self.chunk, self.of_all), -low, floor)
            low.index_fill_(0, first, -torch.inf)
            counts = [max(n, int(own.isneginf().sum())) for n, own in zip(counts, self.chunk.split(low), strict=True)]
        return k_smallest_each(low, self.chunk.sizes, counts)

    def _lowness(self, score: Rule) -> Tensor:
        """The scores of all places, negative, as a tensor that may be changed."""
        everything = OfChunk(self.chunk, self.of_all)
        scores = score(everything)
        return scores.neg() if everything.holds(scores) else scores.neg_()


@dataclass(frozen=True)
class ListedPart(Part):
    """A chunk of which only the active units are stored; all it has is in the order of `active`.

    `candidates`: the free places that may grow, ascending, how many of each layer, and their gradients: as many as can
    be wanted, and the best.
    """

    chunk: Chunk
    active: Listed
    counts: tuple[int, ...]
    kernels: Kernels
    stored: Callable[[str], Tensor]
    candidates: Callable[[], tuple[Tensor, Sequence[int], Tensor]]

    @property
    def places(self) -> Tensor:
        return self.active.positions

    def of_active(self, name: str) -> Tensor:
        flat = join([self.stored(name)])
        if flat.is_floating_point():
            check_finite(flat, self.chunk.layers, self.counts, f"{name}s")
        return flat

    def largest_free(self, counts: Sequence[int], score: Rule, among: Tensor | None) -> Tensor:
        places, room, gradient = self.candidates()
        units = OfChunk(self.chunk, {"gradient": gradient}.__getitem__, lambda: places)
        return places.index_select(0, k_smallest_each(-score(units), room, counts))
