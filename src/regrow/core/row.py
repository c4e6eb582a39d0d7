"""The row: all units of all sparse tensors laid end to end, walked in chunks of whole layers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import mul
from typing import TypeVar

import torch
from torch import Tensor

from regrow.core.selections import k_smallest_each, positions_of
from regrow.core.units import Layer

T = TypeVar("T")

# On a GPU few long passes are fast; on a CPU a chunk should stay in the cache.
CHUNK_UNITS = {"cpu": 1 << 18}
DEFAULT_CHUNK_UNITS = 1 << 26


@dataclass(frozen=True)
class Chunk:
    """A stretch of whole layers on one device; `offsets` say where each begins, and where the last one ends."""

    first: int
    layers: tuple[Layer, ...]
    offsets: tuple[int, ...]
    device: torch.device

    @property
    def num_units(self) -> int:
        return self.offsets[-1]

    @cached_property
    def bounds(self) -> Tensor:
        """The offsets, on the device."""
        return torch.tensor(self.offsets).to(self.device)

    @cached_property
    def ends(self) -> Tensor:
        """Where each layer ends, on the device."""
        return self.bounds[1:]

    def split(self, stretch: Tensor) -> list[Tensor]:
        """A flat tensor over this chunk as one view per layer."""
        return list(torch.split(stretch, [layer.num_units for layer in self.layers]))

    def of(self, per_layer: Sequence[T]) -> Sequence[T]:
        """This chunk's part of a list with one entry for every layer of the row."""
        return per_layer[self.first : self.first + len(self.layers)]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The units of this chunk's tensors in row order."""
        return self.join([layer.flatten(tensor) for layer, tensor in zip(self.layers, tensors, strict=True)])

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """One stretch out of those of the layers; a view where there is one layer, a copy where more."""
        row = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        return row if row.dtype in (torch.float64, torch.bool) else row.float()

    def per_unit(self, per_layer: Sequence[float], positions: Tensor) -> float | Tensor:
        """A number of each layer for some positions; one for all where all layers agree."""
        if len(set(per_layer)) == 1:
            return per_layer[0]
        return torch.tensor(per_layer, device=self.device)[torch.searchsorted(self.ends, positions, right=True)]

    def count_per_layer(self, positions: Tensor) -> list[int]:
        """How many of some ascending positions fall into each layer."""
        if len(self.layers) == 1:
            return [len(positions)]
        up_to: list[int] = torch.searchsorted(positions, self.ends).tolist()
        return [end - start for start, end in zip([0, *up_to], up_to, strict=False)]


def cut_into_chunks(
    layers: Sequence[Layer], devices: Sequence[torch.device], limit: int | None = None
) -> tuple[Chunk, ...]:
    """Cut the row into chunks of whole layers of one device, each of at most `limit` units unless one layer is longer.

    What a rewiring does must not depend on the cut: it is there for speed and memory only.
    """
    chunks: list[Chunk] = []
    first = 0
    while first < len(layers):
        device = devices[first]
        room = limit or CHUNK_UNITS.get(device.type, DEFAULT_CHUNK_UNITS)
        offsets = [0, layers[first].num_units]
        last = first + 1
        while last < len(layers) and devices[last] == device and offsets[-1] + layers[last].num_units <= room:
            offsets.append(offsets[-1] + layers[last].num_units)
            last += 1
        chunks.append(Chunk(first, tuple(layers[first:last]), tuple(offsets), device))
        first = last
    return tuple(chunks)


@dataclass(frozen=True)
class Listed:
    """A topology as the ascending positions of its active units, where flags for all places would be too many."""

    positions: Tensor

    def within(self, begin: int, end: int) -> Tensor:
        """The positions from `begin` up to `end`."""
        bounds = torch.tensor([begin, end], device=self.positions.device)
        first, last = torch.searchsorted(self.positions, bounds).tolist()
        return self.positions[first:last]


Active = Tensor | Listed
"""Which units of a stretch are active: a flag for each, or a list."""


def is_active(active: Active, places: Tensor) -> Tensor:
    """Whether the units at some places are active."""
    if isinstance(active, Tensor):
        return active.index_select(0, places)
    if not len(active.positions):
        return torch.zeros_like(places, dtype=torch.bool)
    at = torch.searchsorted(active.positions, places).clamp_(max=len(active.positions) - 1)
    return active.positions.index_select(0, at) == places


class Stretch(ABC):
    """A chunk at the moment of a rewiring, as the rules see it; `counts` says how many are active in each layer."""

    chunk: Chunk
    active: Active
    counts: tuple[int, ...]

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Where the active units are, ascending."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The values of the active units (of coarse ones the mean magnitude); refused if they are not finite."""

    @property
    @abstractmethod
    def sides(self) -> Tensor:
        """The side of zero each active unit belongs to (true: positive), where a method fixes it."""

    @abstractmethod
    def below(self, bound: float) -> tuple[Tensor, list[int]]:
        """Where the active units of magnitude less than a bound are, ascending, and how many of each layer."""

    @abstractmethod
    def best_free(self, wanted: Sequence[int]) -> Tensor:
        """The free places of each layer with the largest scores; among equal ones those that come first."""

    @abstractmethod
    def mean_scores(self) -> list[float]:
        """The mean growth score of each layer's active units."""

    @cached_property
    def magnitude(self) -> Tensor:
        return self.weights.abs()

    def smallest(self, wanted: Sequence[int]) -> Tensor:
        """Where the smallest active units of each layer are, ascending; among equal ones those that come first."""
        return self.positions.index_select(0, k_smallest_each(self.magnitude, self.counts, wanted))

    def flagged(self, flags: Tensor) -> Tensor:
        """The positions of some of the active units."""
        return self.positions.index_select(0, positions_of(flags))

    def magnitude_at(self, positions: Tensor) -> Tensor:
        """The magnitude of the active units at some positions."""
        return self.magnitude.index_select(0, torch.searchsorted(self.positions, positions))

    @property
    def free(self) -> list[int]:
        return [layer.num_units - count for layer, count in zip(self.chunk.layers, self.counts, strict=True)]


def check_finite(values: Tensor, layers: Sequence[Layer], lengths: Sequence[int], what: str) -> None:
    """Refuse to go on with NaN or inf, naming the layer; `lengths` says how many of the values belong to each."""
    # On a GPU one launch; on a CPU the other way is many times faster.
    extremes = [torch.linalg.vector_norm(values, torch.inf)] if values.is_cuda else list(values.aminmax())
    if all(isfinite(float(extreme)) for extreme in extremes):
        return
    parts = zip(layers, torch.split(values, list(lengths)), strict=True)
    name = next(layer.name for layer, part in parts if not bool(part.isfinite().all()))
    raise ValueError(f"cannot rewire: {name} has {what} that are not finite; lower the learning rate or clip gradients")


@dataclass(frozen=True)
class Tally:
    """The whole row in whole numbers, one entry per layer.

    `goal`: the active units that the budget and the method's distribution would give each layer. `pruned`: how many
    units go, all 0 while that is not yet known.
    """

    unit_sizes: tuple[int, ...]
    num_units: tuple[int, ...]
    active: tuple[int, ...]
    goal: tuple[int, ...]
    budget: int
    pruned: tuple[int, ...]

    @cached_property
    def free(self) -> list[int]:
        """Places that were free before pruning: where a unit may grow, since a just-pruned one may not return."""
        return [units - active for units, active in zip(self.num_units, self.active, strict=True)]

    @cached_property
    def survivors(self) -> list[int]:
        return [active - pruned for active, pruned in zip(self.active, self.pruned, strict=True)]

    def of(self, layers: Sequence[int]) -> "Tally":
        """Some of the layers, whose budget is what they hold."""

        def pick(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(numbers[i] for i in layers)

        sizes, active = pick(self.unit_sizes), pick(self.active)
        held: int = sum(map(mul, active, sizes))
        return Tally(sizes, pick(self.num_units), active, pick(self.goal), held, pick(self.pruned))

    @cached_property
    def open_weights(self) -> int:
        """How many weights may grow: the budget less what survives."""
        surviving: int = sum(map(mul, self.survivors, self.unit_sizes))
        return self.budget - surviving
