"""The two ways a stretch of the row can look in memory: a flag for every unit, or a list of the active ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regrow.core.row import Chunk, Listed, Stretch, check_finite
from regrow.core.selections import k_smallest_each, positions_of
from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu import compare as comparing


@dataclass(frozen=True)
class FlaggedStretch(Stretch):
    """A stretch of tensors that have an entry for each unit, active or not.

    `active` flags its units. The rest is made when it is asked for and not kept, because it is large: `pieces`, the
    weights of each layer (for coarse units their mean magnitudes), flat, and mostly views; `signs`, the side of zero
    each unit belongs to; `scores`, what growth goes by, a tensor of its own that may be changed.
    """

    chunk: Chunk
    active: Tensor
    counts: tuple[int, ...]
    pieces: Callable[[], Sequence[Tensor]]
    signs: Callable[[], Tensor]
    scores: Callable[[], Tensor]

    def values(self) -> Tensor:
        """The weights of all layers in one; refused if they are not finite."""
        row = self.chunk.join(self.pieces())
        check_finite(row, self.chunk.layers, [layer.num_units for layer in self.chunk.layers], "weights")
        return row

    @cached_property
    def positions(self) -> Tensor:
        return positions_of(self.active)

    @cached_property
    def weights(self) -> Tensor:
        return self.values().index_select(0, self.positions)

    @property
    def sides(self) -> Tensor:
        return self.signs().index_select(0, self.positions)

    def below(self, bound: float) -> tuple[Tensor, list[int]]:
        if can_use_triton(self.chunk.device):
            found = comparing.below(self.chunk, self.pieces(), self.active, bound)
            if found is not None:
                return found
        is_below = self.values().abs() < bound
        positions = positions_of(is_below.logical_and_(self.active))
        return positions, self.chunk.count_per_layer(positions)

    def smallest(self, wanted: Sequence[int]) -> Tensor:
        if can_use_triton(self.chunk.device):
            found = comparing.smallest(self.chunk, self.pieces(), self.active, wanted)
            if found is not None:
                return found
        return super().smallest(wanted)

    def best_free(self, wanted: Sequence[int]) -> Tensor:
        lowness = self.scores().neg_().index_fill_(0, self.positions, torch.inf)
        return k_smallest_each(lowness, [layer.num_units for layer in self.chunk.layers], wanted)

    def mean_scores(self) -> list[float]:
        scores = torch.split(self.scores().index_select(0, self.positions), list(self.counts))
        means: list[float] = torch.stack([layer.mean() for layer in scores]).tolist()
        return means


@dataclass(frozen=True)
class Candidates:
    """Free places of the layers of a stretch that may grow, ascending, with their scores, and how many of each layer.

    As many of each as can be wanted, and the best.
    """

    places: Tensor
    scores: Tensor
    counts: Sequence[int]


@dataclass(frozen=True)
class ListedStretch(Stretch):
    """A stretch of which only the active units are stored; all it has is in the order of `active`."""

    chunk: Chunk
    active: Listed
    counts: tuple[int, ...]
    values: Callable[[], Tensor]
    signs: Callable[[], Tensor]
    candidates: Callable[[], Candidates]

    @property
    def positions(self) -> Tensor:
        return self.active.positions

    @cached_property
    def weights(self) -> Tensor:
        row = self.chunk.join([self.values()])
        check_finite(row, self.chunk.layers, self.counts, "weights")
        return row

    @property
    def sides(self) -> Tensor:
        return self.signs()

    def below(self, bound: float) -> tuple[Tensor, list[int]]:
        positions = self.flagged(self.magnitude < bound)
        return positions, self.chunk.count_per_layer(positions)

    def best_free(self, wanted: Sequence[int]) -> Tensor:
        candidates = self.candidates()
        return candidates.places.index_select(0, k_smallest_each(-candidates.scores, candidates.counts, wanted))

    def mean_scores(self) -> list[float]:
        raise ValueError("packed storage keeps no scores of active weights; use storage='dense'")
