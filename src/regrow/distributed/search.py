"""The first so many of each layer, or of all, by a score: an exact search of its bits, digit by digit, over all ranks.

In each pass ranks add up how many of their candidates have which digit, of all layers at once; that says in which bin
the last one lies that is taken, and only what is in there goes on to the next pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from regrow.core.selections import ascending, positions_of
from regrow.distributed.collectives import Ranks, attempt
from regrow.distributed.shard import ShardedChunk

_BITS = 9
_BINS = 1 << _BITS
_SINGLE = 28  # bits that are 0 at the end of a double which was a float
_LONG = 1 << 30
_BELOW_ALL = -(1 << 62)


@dataclass(frozen=True)
class Candidates:
    """Some units of a chunk: those at `places`, or all that are flagged; the first are those with the smallest scores.

    Scores are asked for twice, so that of a long chunk nobody has to keep them.
    """

    chunk: ShardedChunk
    scores: Callable[[], Tensor]
    places: Tensor | None = None
    flags: Tensor | None = None

    def lengths(self) -> Sequence[int]:
        return self.chunk.sizes if self.places is None else self.chunk.count_per_layer(self.places)

    def counted(self) -> Tensor | None:
        """Which of them count on this rank."""
        own = self.chunk.counted
        own = own if own is None or self.places is None else own[self.places]
        if own is None or self.flags is None:
            return self.flags if own is None else own
        return own & self.flags


@dataclass(frozen=True)
class Order:
    """How candidates compare: by floats, or whole numbers of fewer than 64 bits, and where these are equal by position.

    `groups`: of each layer the number of the group that shares what is wanted; `weights`: how much a unit of it counts,
    where the last one that is taken may go beyond what is wanted.
    """

    width: int = 64
    is_last_first: bool = False
    groups: Sequence[int] | None = None
    weights: Sequence[int] | None = None

    def passes(self, is_wide: bool) -> list[tuple[int, int]]:
        """Of which bits each pass is: how many are behind them, and how many these are."""
        ends = [*range(self.width, 0, -_BITS), 0]
        found = [(low, high - low) for high, low in pairwise(ends)]
        return found if is_wide else [(low, count) for low, count in found if low >= _SINGLE]


@dataclass
class _Goal:
    """How much is still to be taken of a group of layers, and how the last one that is begins."""

    left: int
    head: int = 0
    is_met: bool = False

    def meet(self, totals: Tensor, first: int, num_bits: int) -> None:
        """Go into the bin where the last one lies; `first` is the digit of the first bin."""
        up_to = totals.cumsum(0)
        found = min(int(torch.searchsorted(up_to, self.left)), len(totals) - 1)
        in_bin = int(totals[found])
        self.left -= int(up_to[found]) - in_bin
        self.head = (self.head << num_bits) + found + first
        self.is_met = self.left >= in_bin


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass
class _Piece:
    """The candidates of a layer here: which are surely taken, and which are still open."""

    goal: _Goal
    weight: int
    begin: int
    end: int
    taken: list[Tensor] = field(default_factory=list)
    at: Tensor = field(default_factory=_nothing)
    keys: Tensor = field(default_factory=_nothing)

    def narrow(self, keys: Tensor, at: Tensor, shift: int) -> None:
        heads = keys >> shift
        self.taken.append(at[heads <= self.goal.head if self.goal.is_met else heads < self.goal.head])
        still = positions_of(heads == self.goal.head) if not self.goal.is_met else at[:0]
        self.at, self.keys = at[still], keys[still]


def first_of(
    candidates: Sequence[Candidates], wanted: Sequence[int], ranks: Ranks, order: Order | None = None
) -> list[Tensor]:
    """Of each chunk the ascending places here that are taken."""
    order = order or Order()
    nothing = [torch.empty(0, dtype=torch.int64, device=own.chunk.device) for own in candidates]
    if not any(count > 0 for count in wanted):
        return nothing
    search = _Search(candidates, wanted, ranks, order)
    search.by_score()
    search.by_position()
    found = []
    for own, pieces, none in zip(candidates, search.pieces, nothing, strict=True):
        taken = ascending(torch.cat([none, *(some for piece in pieces for some in piece.taken)]))
        found.append(taken if own.places is None else own.places[taken])
    return found


class _Search:
    def __init__(self, candidates: Sequence[Candidates], wanted: Sequence[int], ranks: Ranks, order: Order) -> None:
        self._candidates, self._ranks, self._order = candidates, ranks, order
        self._goals = [_Goal(count) if count > 0 else _Goal(0, _BELOW_ALL, is_met=True) for count in wanted]
        self.pieces = [list(self._pieces_of(own)) for own in candidates]
        sizes = [layer.whole.num_units for own in candidates for layer in own.chunk.layers]
        self._num_positions = sum(sizes)
        self._dtype = torch.int32 if order.weights is None and max(sizes) < _LONG else torch.int64

    def _pieces_of(self, own: Candidates) -> Iterator[_Piece]:
        groups, weights = self._order.groups, self._order.weights
        begin = 0
        for i, length in enumerate(own.lengths(), own.chunk.first):
            goal = self._goals[i if groups is None else groups[i]]
            yield _Piece(goal, 1 if weights is None else weights[i], begin, begin + length)
            begin += length

    def by_score(self) -> None:
        is_signed = self._order.width == 64
        shift, num_bits = self._order.passes(True)[0]
        first = -(_BINS >> 1) if is_signed else 0
        rows, problem = attempt(lambda: self._first_rows(shift, first), None)
        if rows is None:
            rows = [torch.zeros(_BINS + 1, dtype=self._dtype) for pieces in self.pieces for _ in pieces]
        totals = self._ranks.add(rows, problem)
        self._meet(totals[:, :-1], first, num_bits)
        for own, pieces in zip(self._candidates, self.pieces, strict=True):
            self._narrow_first(own, pieces, shift)
        self._go_on(self._order.passes(bool(totals[:, -1].any()))[1:])

    def by_position(self) -> None:
        """What is open is equal by now."""
        if all(goal.is_met for goal in self._goals):
            return
        for goal in self._goals:
            goal.head = goal.head if goal.is_met else 0
        for own, pieces in zip(self._candidates, self.pieces, strict=True):
            for piece in pieces:
                at = own.chunk.positions(piece.at if own.places is None else own.places[piece.at])
                piece.keys = self._num_positions - 1 - at if self._order.is_last_first else at
        self._go_on(Order(self._num_positions.bit_length()).passes(True))
        for pieces in self.pieces:
            for piece in pieces:
                piece.taken.append(piece.at)  # the last one of a group, which may be more than was wanted

    def _first_rows(self, shift: int, first: int) -> list[Tensor]:
        """Of each layer how many have which first digit, and whether what follows is more than a float has."""
        rows = []
        for own, pieces in zip(self._candidates, self.pieces, strict=True):
            scores, counted = own.scores(), own.counted()
            is_wide = torch.tensor([int(scores.dtype not in _NARROW)], dtype=self._dtype)
            for piece in pieces:
                mine = slice(piece.begin, piece.end)
                keys = keys_of(scores[mine])
                digits = (keys if counted is None else keys[counted[mine]]) >> shift
                rows.append(torch.cat([self._histogram(digits - first, piece), is_wide.to(scores.device)]))
        return rows

    def _narrow_first(self, own: Candidates, pieces: Sequence[_Piece], shift: int) -> None:
        scores = own.scores()
        for piece in pieces:
            keys = keys_of(scores[piece.begin : piece.end])
            if own.flags is None:
                piece.narrow(keys, torch.arange(piece.begin, piece.end, device=keys.device), shift)
            else:
                at = positions_of(own.flags[piece.begin : piece.end])
                piece.narrow(keys[at], at + piece.begin, shift)

    def _go_on(self, passes: Sequence[tuple[int, int]]) -> None:
        for shift, num_bits in passes:
            if all(goal.is_met for goal in self._goals):
                return
            rows = []
            for own, pieces in zip(self._candidates, self.pieces, strict=True):
                counted = own.counted()
                for piece in pieces:
                    keys = piece.keys if counted is None else piece.keys[counted[piece.at]]
                    rows.append(self._histogram((keys >> shift) & ((1 << num_bits) - 1), piece))
            self._meet(self._ranks.add(rows), 0, num_bits)
            for pieces in self.pieces:
                for piece in pieces:
                    piece.narrow(piece.keys, piece.at, shift)

    def _histogram(self, digits: Tensor, piece: _Piece) -> Tensor:
        return torch.bincount(digits, minlength=_BINS).to(self._dtype) * piece.weight

    def _meet(self, totals: Tensor, first: int, num_bits: int) -> None:
        """Of each layer a row with how much there is of each digit."""
        order = [piece.goal for pieces in self.pieces for piece in pieces]
        for goal in self._goals:
            if not goal.is_met:
                mine = [row for row, own in zip(totals, order, strict=True) if own is goal]
                goal.meet(torch.stack(mine).sum(0), first, num_bits)


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def keys_of(scores: Tensor) -> Tensor:
    """Whole numbers that compare as the scores do."""
    if not scores.is_floating_point():
        return scores
    bits = (scores.double() + 0.0).view(torch.int64)  # adding 0 makes -0 and 0 the same
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)
