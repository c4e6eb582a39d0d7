"""The row: all units of all sparse tensors laid end to end, walked in chunks of whole layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import mul
from typing import TypeVar

import torch
from torch import Tensor

from regrow.select import positions_of
from regrow.units import Layer

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
class Stretch:
    """A chunk at the moment of a rewiring, as the rules see it.

    `active` flags its units and `counts` says how many are active in each layer. The rest is made when it is asked for,
    with an entry for each unit, active or not, and not kept, because it is large: `pieces`, the weights of each layer
    (for coarse units their mean magnitudes), flat, and mostly views; `signs`, the side of zero each unit belongs to
    (true: positive) where a method fixes it; `scores`, what growth goes by, a tensor of its own that may be changed.
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
        check_finite(row, self.chunk.layers, "weights")
        return row

    @cached_property
    def positions(self) -> Tensor:
        """Where the active units are, ascending."""
        return positions_of(self.active)

    @cached_property
    def weights(self) -> Tensor:
        """The values of the active units."""
        return self.values().index_select(0, self.positions)

    @cached_property
    def magnitude(self) -> Tensor:
        return self.weights.abs()

    def flagged(self, flags: Tensor) -> Tensor:
        """The positions of some of the active units."""
        return self.positions.index_select(0, positions_of(flags))

    @property
    def free(self) -> list[int]:
        return [layer.num_units - count for layer, count in zip(self.chunk.layers, self.counts, strict=True)]


def check_finite(values: Tensor, layers: Sequence[Layer], what: str) -> None:
    """Refuse to go on with NaN or inf, naming the layer."""
    # On a GPU one launch; on a CPU the other way is many times faster.
    extremes = [torch.linalg.vector_norm(values, torch.inf)] if values.is_cuda else list(values.aminmax())
    if all(isfinite(float(extreme)) for extreme in extremes):
        return
    parts = zip(layers, torch.split(values, [layer.num_units for layer in layers]), strict=True)
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

    @cached_property
    def open_weights(self) -> int:
        """How many weights may grow: the budget less what survives."""
        surviving: int = sum(map(mul, self.survivors, self.unit_sizes))
        return self.budget - surviving
