"""Evidence of which each rank has a part: selections are those of one process with the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from math import frexp
from typing import cast

import numpy as np
import torch
from torch import Tensor

from regrow.core.evidence import Evidence, MaskedPart
from regrow.core.quantities import Rule, Score, as_numbers, magnitude, refuse_nan
from regrow.core.row import Tally, Units, check_finite
from regrow.core.selections import positions_of
from regrow.distributed.collectives import Ranks, attempt
from regrow.distributed.draws import draw_free
from regrow.distributed.search import Candidates, Order, first_of
from regrow.distributed.shard import ShardedChunk

_HUGE = 2.0**900


class ShardedEvidence(Evidence):
    """Positions and quantities are of the units here, and counts of the whole network.

    A unit that lies on several ranks is among the evidence of each, and counted by one of them.
    """

    def __init__(self, parts: Sequence[MaskedPart], tally: Tally, step: int, ranks: Ranks) -> None:
        super().__init__(parts, tally, step)
        self._masked, self._ranks = parts, ranks
        self._chunks = [_chunk(part) for part in parts]

    def look_up(self, name: str) -> Tensor:
        if name == "position":
            return super().look_up(name)
        found, problem = attempt(lambda: super(ShardedEvidence, self).look_up(name), self.position[:0])
        self._ranks.agree(problem)
        return found

    # Among active units

    def below(self, bound: float, score: Score = None) -> Units:
        bound = float(np.float32(bound))

        def here() -> list[Tensor]:
            pairs = zip(self._parts, self._scores(score), strict=True)
            return [part.below(bound, own)[0] for part, own in pairs]

        found, problem = attempt(here, self._no_places)
        return self._units(found, problem=problem)

    def smallest(self, counts: Sequence[int], score: Score = None, floor: Mapping[int, int] | None = None) -> Units:
        if floor is not None:
            raise ValueError("of a network that is sharded no units are spared by index; leave out floor")
        return self._units(first_of(self._active(score), counts, self._ranks), counts)

    def smallest_of_all(self, count: int, score: Score = None) -> Units:
        if score is None and count in self._smallest:
            return self._smallest[count]
        spared = self._last_largest if score is None else self._find_last_largest(score)
        candidates = []
        for own, places in zip(self._active(score), spared, strict=True):
            assert own.places is not None
            candidates.append(Candidates(own.chunk, own.scores, own.places, ~torch.isin(own.places, places)))
        num_layers = len(self.tally.active)
        wanted = min(max(count, 0), sum(self.tally.active) - num_layers)
        found = self._units(first_of(candidates, [wanted], self._ranks, Order(groups=[0] * num_layers)))
        if score is None:
            self._smallest[count] = found
        return found

    @cached_property
    def _last_largest(self) -> list[Tensor]:
        return self._find_last_largest(None)

    def _find_last_largest(self, score: Score) -> list[Tensor]:
        """Of each chunk the place of each layer's largest unit, which never goes."""
        largest_first = [_reversed(own) for own in self._active(score)]
        return first_of(largest_first, [1] * len(self.tally.active), self._ranks, Order(is_last_first=True))

    def mean_of_each(self, score: Score) -> list[float]:
        nothing = [torch.zeros(0, dtype=torch.float64, device=self._parts[0].chunk.device)] * len(self.tally.active)
        scores, problem = attempt(lambda: self._finite_per_layer(score), nothing)
        self._ranks.agree(problem)
        return _exact_means(scores, self.tally.active, self._ranks)

    def _finite_per_layer(self, score: Score) -> list[Tensor]:
        """The scores of the active units of each layer that this rank counts."""
        found: list[Tensor] = []
        for own, part in zip(self._active(score), self._masked, strict=True):
            scores, counted = own.scores(), own.counted()
            check_finite(scores, part.chunk.layers, part.counts, "scores")
            pieces = torch.split(scores, list(part.counts))
            if counted is not None:
                flags = torch.split(counted, list(part.counts))
                pieces = tuple(own[some] for own, some in zip(pieces, flags, strict=True))
            found += pieces
        return found

    # Among free places

    def largest_free(self, counts: Sequence[int], score: Rule, among: Units | None = None) -> Units:
        counts = list(map(min, counts, self.tally.free))
        named = [None] * len(self._masked) if among is None else self.split(among)
        candidates = [
            Candidates(_chunk(part), partial(_lowness, part, flags, score), flags=flags)
            for part, flags in ((part, _free_among(part, some)) for part, some in zip(self._masked, named, strict=True))
        ]
        if among is not None:
            rooms = self._units([positions_of(own.flags) for own in candidates if own.flags is not None]).counts
            counts = list(map(min, counts, rooms))
        return self._units(first_of(candidates, counts, self._ranks), counts)

    def draw_free(self, counts: Sequence[int], key: int) -> Units:
        counts = list(map(min, counts, self.tally.free))
        actives = [part.active for part in self._masked]
        return self._units(draw_free(self._chunks, actives, counts, self.tally.free, key, self._ranks), counts)

    def largest(
        self, counts: Sequence[int], score: Rule | None = None, floor: Mapping[int, int] | None = None
    ) -> Units:
        raise ValueError("a network that is sharded is not compared at all of its places; use another method")

    # What a rewiring does with units

    def spare_largest(self, chosen: Units, groups: Sequence[Sequence[int]], excesses: Sequence[int]) -> Units:
        places = self.split(chosen)
        largest_first = [
            _reversed(Candidates(own.chunk, own.scores, own.places, torch.isin(_places(own), some)))
            for own, some in zip(self._active(None), places, strict=True)
        ]
        number = {i: own for own, group in enumerate(groups) for i in group}
        order = Order(groups=[number[i] for i in range(len(number))], weights=self.tally.unit_sizes)
        spared = first_of(largest_first, excesses, self._ranks, order)
        return self._units([own[~torch.isin(own, some)] for own, some in zip(places, spared, strict=True)])

    def split(self, units: Units) -> list[Tensor]:
        positions = units.positions.sort().values
        bounds = torch.tensor([chunk.begins[-1] for chunk in self._chunks], device=positions.device)
        up_to = [0, *torch.searchsorted(positions, bounds).tolist()]
        pieces = torch.split(positions, [end - begin for begin, end in pairwise(up_to)])
        return [chunk.places(own.to(chunk.device)) for chunk, own in zip(self._chunks, pieces, strict=True)]

    def counts_here(self, units: Units) -> Sequence[int]:
        pairs = zip(self._chunks, self.split(units), strict=True)
        return [n for chunk, own in pairs for n in chunk.count_per_layer(own)]

    # Units and scores

    @property
    def _no_places(self) -> list[Tensor]:
        return [torch.empty(0, dtype=torch.int64, device=chunk.device) for chunk in self._chunks]

    def _units(
        self, found: Sequence[Tensor], counts: Sequence[int] | None = None, problem: Exception | None = None
    ) -> Units:
        """Units at ascending places of each chunk; where it is not known how many there are, ranks add that up."""
        if counts is None:
            rows = [torch.tensor([n]) for chunk, own in zip(self._chunks, found, strict=True) for n in chunk.count(own)]
            counts = self._ranks.add(rows, problem).flatten().tolist()
        return Units(self._in_row(found), list(counts))

    def _active(self, score: Score) -> list[Candidates]:
        """Active units by score, which is looked at when a search begins."""
        rule = magnitude if score is None else score
        given: Sequence[Tensor | Rule] = [rule for _ in self._masked] if callable(rule) else self._pieces(rule)
        pairs = zip(self._masked, given, strict=True)
        return [Candidates(_chunk(part), partial(_scores_of, part, own), part.places) for part, own in pairs]

    def _pieces(self, scores: Tensor) -> Sequence[Tensor]:
        return torch.split(scores, [sum(part.counts) for part in self._masked])


def _chunk(part: MaskedPart) -> ShardedChunk:
    return cast(ShardedChunk, part.chunk)


def _scores_of(part: MaskedPart, score: Tensor | Rule) -> Tensor:
    scores = as_numbers(score.to(part.chunk.device) if isinstance(score, Tensor) else score(part.units))
    refuse_nan(scores, part.chunk, part.counts)
    return scores


def _lowness(part: MaskedPart, flags: Tensor, score: Rule) -> Tensor:
    """The scores of all places, negative; those of free ones are numbers."""
    low = part.lowness(score)
    refuse_nan(low.masked_fill(~flags, 0), part.chunk, part.chunk.sizes)
    return low


def _free_among(part: MaskedPart, places: Tensor | None) -> Tensor:
    """Flags of the free places, or of those that are named."""
    if places is None:
        return ~part.active
    named = torch.zeros_like(part.active).index_fill_(0, places, True)
    return named.logical_and_(~part.active)


def _places(own: Candidates) -> Tensor:
    assert own.places is not None
    return own.places


def _reversed(own: Candidates) -> Candidates:
    """The largest first."""
    return replace(own, scores=lambda: -own.scores())


def _exact_means(values: Sequence[Tensor], lengths: Sequence[int], ranks: Ranks) -> list[float]:
    """As `core.selections.exact_means`, of values that are finite and each on one rank; `lengths` are those of all."""
    totals = [Fraction(0)] * len(lengths)
    rests = [own.to(torch.float64, copy=True) for own in values]
    bits = max(lengths).bit_length() + 1
    while (top := _largest(rests, ranks)) > 0:
        factor = 2.0**-200 if top >= _HUGE else 1.0  # to what is larger nothing can be added
        unit = 2.0 ** (frexp(top * factor)[1] + bits)
        leading = [(rest * factor + unit).sub_(unit) for rest in rests]
        sums = torch.stack(ranks.reduce([own.sum().reshape(1).to(ranks.device) for own in leading])).flatten().tolist()
        totals = [total + Fraction(more) / Fraction(factor) for total, more in zip(totals, sums, strict=True)]
        rests = [rest.sub_(own / factor) for rest, own in zip(rests, leading, strict=True)]
    return [float(total / max(length, 1)) for total, length in zip(totals, lengths, strict=True)]


def _largest(values: Sequence[Tensor], ranks: Ranks) -> float:
    tops = [own.abs().amax().reshape(1) if len(own) else own.new_zeros(1) for own in values]
    found = ranks.reduce([own.to(ranks.device) for own in tops], "MAX")
    return float(torch.cat(found).amax())
