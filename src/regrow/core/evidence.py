"""What rules may look at, and the few selections by which they pick units over the whole network.

Rules compute scores, selections pick. A selection is the only operation that knows how weights are stored and on which
device; ties always go to the lower position in the row, so that what is picked depends on neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regrow.core.parts import Part, Quantities, Rule, magnitude
from regrow.core.row import check_finite
from regrow.core.selections import exact_means, k_smallest
from regrow.core.tally import Tally

Score = Tensor | Rule | None
"""Elementwise: a number for each active unit of the row, or a function of a chunk's units; None for magnitude."""


@dataclass(frozen=True)
class Units:
    """Some units: their positions in the row, layer after layer, and how many there are of each layer."""

    positions: Tensor
    counts: Sequence[int]


class Evidence(Quantities):
    """The active units of the row, and the selections; `tally` and `step` say where the network stands.

    `groups` are the layers among which weights may move, where they may not move between all.
    """

    def __init__(
        self, parts: Sequence[Part], tally: Tally, step: int, groups: Sequence[Sequence[int]] | None = None
    ) -> None:
        self.tally, self.step, self.groups = tally, step, groups
        self._parts = parts

    def look_up(self, name: str) -> Tensor:
        return self._in_one([getattr(part.units, name) for part in self._parts])

    def index(self, dim: int) -> Tensor:
        return self._in_one([part.units.index(dim) for part in self._parts])

    # Among active units

    def below(self, bound: float, score: Score = None) -> Units:
        """All with a score less than the bound, strictly."""
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
            scores = [part.spare(own, floor) for part, own in zip(self._parts, scores, strict=True)]
            left = [n for own, part in zip(scores, self._parts, strict=True) for n in _num_finite(own, part.counts)]
            counts = list(map(min, counts, left))
        found = [part.smallest(counts[part.chunk.own], own) for part, own in zip(self._parts, scores, strict=True)]
        return Units(self._in_row(found), counts)

    def smallest_of_all(self, count: int, score: Score = None) -> Units:
        """So many units of the network with the smallest scores, but never the last of a layer."""
        scores = self._in_one(
            [p.units.weight.abs() if s is None else s for p, s in zip(self._parts, self._scores(score), strict=True)]
        ).clone()
        active = [n for part in self._parts for n in part.counts]
        for own in torch.split(scores, active):
            own[len(own) - 1 - int(own.flip(0).argmax())] = torch.inf
        taken = k_smallest(scores, min(count, sum(active) - len(active)))
        ends = torch.tensor(active, device=scores.device).cumsum(0)
        counts = torch.searchsorted(taken, ends).diff(prepend=ends.new_zeros(1)).tolist()
        return Units(self.position.index_select(0, taken), counts)

    def mean_of_each(self, score: Score) -> list[float]:
        """The mean score of each layer, the same however it is added up."""
        pairs = zip(self._parts, self._scores(score or magnitude), strict=True)
        return [mean for part, own in pairs if own is not None for mean in exact_means(own, part.counts)]

    # Among free places, and among all

    def largest_free(self, counts: Sequence[int], score: Rule, among: Units | None = None) -> Units:
        """So many of each layer with the largest scores, of all free places or of those named; fewer if there are."""
        named = [None] * len(self._parts) if among is None else self.split(among)
        found = [p.largest_free(counts[p.chunk.own], score, some) for p, some in zip(self._parts, named, strict=True)]
        if among is not None:
            counts = [n for p, some in zip(self._parts, found, strict=True) for n in p.chunk.count_per_layer(some)]
        return Units(self._in_row(found), counts)

    def draw_free(self, counts: Sequence[int], key: int) -> Units:
        """So many of each layer, at random: a function of the key."""
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
        found = [part.largest(counts[part.chunk.own], score or magnitude, floor or {}) for part in self._parts]
        per_layer = zip(self._parts, found, strict=True)
        return Units(self._in_row(found), [n for part, own in per_layer for n in part.chunk.count_per_layer(own)])

    # Rows and chunks

    @cached_property
    def nothing(self) -> Units:
        return Units(torch.empty(0, dtype=torch.int64, device=self._device), [0] * len(self.tally.active))

    def split(self, units: Units) -> list[Tensor]:
        """Units as places within each chunk, on its device."""
        sizes = [sum(units.counts[part.chunk.own]) for part in self._parts]
        pairs = zip(torch.split(units.positions, sizes), self._parts, strict=True)
        return [(some - p.chunk.start if p.chunk.start else some).to(p.chunk.device) for some, p in pairs]

    @property
    def _device(self) -> torch.device:
        return self._parts[0].chunk.device

    def _in_row(self, places: Sequence[Tensor]) -> Tensor:
        """Places within each chunk as positions in the row."""
        pairs = zip(places, self._parts, strict=True)
        return self._in_one([some + p.chunk.start if p.chunk.start else some for some, p in pairs])

    def _in_one(self, pieces: Sequence[Tensor]) -> Tensor:
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.to(self._device) for piece in pieces])

    def _scores(self, score: Score) -> list[Tensor | None]:
        """The scores of each chunk's active units; None where they are the magnitudes."""
        if score is None:
            return [None] * len(self._parts)
        if isinstance(score, Tensor):
            pieces = torch.split(score, [sum(part.counts) for part in self._parts])
            scores = [own.to(part.chunk.device) for own, part in zip(pieces, self._parts, strict=True)]
        else:
            scores = [score(part.units) for part in self._parts]
        for own, part in zip(scores, self._parts, strict=True):
            if bool(own.isnan().any()):
                check_finite(own, part.chunk.layers, part.counts, "scores")
        return list(scores)


def _num_finite(scores: Tensor | None, counts: Sequence[int]) -> list[int]:
    assert scores is not None
    return [int(own.isfinite().sum()) for own in torch.split(scores, list(counts))]
