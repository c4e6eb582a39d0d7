"""The row: all units of all sparse tensors laid end to end; its chunks, and itself in whole numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import mul, sub
from typing import TypeVar

import torch
from torch import Tensor

from regrow.core.units import Layer

T = TypeVar("T")

# On a GPU few long passes are fast; on a CPU a chunk should stay in the cache.
CHUNK_UNITS = {"cpu": 1 << 18}
DEFAULT_CHUNK_UNITS = 1 << 26


@dataclass(frozen=True)
class Chunk:
    """Some consecutive layers on one device.

    `first`: the number of its first layer; `start`: the position of its first unit in the row; `offsets`: where each
    layer begins within the chunk, and where the last one ends.
    """

    first: int
    start: int
    layers: tuple[Layer, ...]
    offsets: tuple[int, ...]
    device: torch.device

    @cached_property
    def own(self) -> slice:
        """This chunk's part of a list with one entry for every layer of the row."""
        return slice(self.first, self.first + len(self.layers))

    @cached_property
    def num_units(self) -> int:
        return self.offsets[-1]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many units each layer has."""
        return tuple(layer.num_units for layer in self.layers)

    @cached_property
    def bounds(self) -> Tensor:
        """The offsets, on the device."""
        return torch.tensor(self.offsets).to(self.device)

    @cached_property
    def ends(self) -> Tensor:
        """Where each layer ends, on the device."""
        return self.bounds[1:]

    def positions(self, places: Tensor) -> Tensor:
        """Where ascending places within the chunk are in the row."""
        return places + self.start

    def places(self, positions: Tensor) -> Tensor:
        """The other way around."""
        return positions - self.start

    def split(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor over this chunk as one view per layer."""
        return list(torch.split(flat, list(self.sizes)))

    def of(self, per_layer: Sequence[T]) -> Sequence[T]:
        """This chunk's part of a list with one entry for every layer of the row."""
        return per_layer[self.own]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The units of this chunk's tensors in row order."""
        return join([layer.flatten(tensor) for layer, tensor in zip(self.layers, tensors, strict=True)])

    def per_unit(self, per_layer: Sequence[float], positions: Tensor) -> float | Tensor:
        """A number of each layer for some positions within the chunk; one for all where all layers agree."""
        if len(set(per_layer)) == 1:
            return per_layer[0]
        return torch.tensor(per_layer, device=self.device)[torch.searchsorted(self.ends, positions, right=True)]

    def count_per_layer(self, positions: Tensor) -> list[int]:
        """How many of some ascending positions within the chunk fall into each layer."""
        if len(self.layers) == 1:
            return [len(positions)]
        up_to: list[int] = torch.searchsorted(positions, self.ends).tolist()
        return [end - start for start, end in zip([0, *up_to], up_to, strict=False)]

    def per_layer(self, positions: Tensor) -> list[Tensor]:
        """Ascending positions within the chunk as those within each of its layers."""
        parts = torch.split(positions, self.count_per_layer(positions))
        return [part - offset for part, offset in zip(parts, self.offsets, strict=False)]


@dataclass(frozen=True)
class Units:
    """Some units: their positions in the row, layer after layer, and how many there are of each layer.

    Of shards the positions are those on this rank, and the counts those of all.
    """

    positions: Tensor
    counts: Sequence[int]

    def without_largest(
        self, magnitude: Tensor, unit_sizes: Sequence[int], groups: Sequence[Sequence[int]], excesses: Sequence[int]
    ) -> "Units":
        """Less the largest of each group of layers, as many as weigh its excess; of equal ones the first."""
        layer_of = torch.arange(len(self.counts)).repeat_interleave(torch.tensor(self.counts))
        stays = torch.ones_like(magnitude, dtype=torch.bool)
        for group, excess in zip(groups, excesses, strict=True):
            ours = torch.isin(layer_of, torch.tensor(group)).nonzero().flatten()
            largest_first = ours[magnitude[ours].argsort(descending=True, stable=True)]
            sizes = torch.tensor(unit_sizes)[layer_of[largest_first]]
            stays[largest_first[sizes.cumsum(0) - sizes < excess]] = False
        left = layer_of[stays].bincount(minlength=len(self.counts)).tolist()
        return Units(self.positions[stays.to(self.positions.device)], left)


def join(pieces: Sequence[Tensor]) -> Tensor:
    """One flat tensor out of those of some layers; a view where there is one, a copy where there are more."""
    flat = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
    return flat if flat.dtype in (torch.float64, torch.bool) else flat.float()


def cut_into_chunks(
    layers: Sequence[Layer], devices: Sequence[torch.device], limit: int | None = None
) -> tuple[Chunk, ...]:
    """Cut the row into chunks of whole layers of one device, each of at most `limit` units unless one layer is longer.

    What a rewiring does must not depend on the cut: it is there for speed and memory only.
    """
    chunks: list[Chunk] = []
    first = start = 0
    while first < len(layers):
        device = devices[first]
        room = limit or CHUNK_UNITS.get(device.type, DEFAULT_CHUNK_UNITS)
        offsets = [0, layers[first].num_units]
        last = first + 1
        while last < len(layers) and devices[last] == device and offsets[-1] + layers[last].num_units <= room:
            offsets.append(offsets[-1] + layers[last].num_units)
            last += 1
        chunks.append(Chunk(first, start, tuple(layers[first:last]), tuple(offsets), device))
        first, start = last, start + offsets[-1]
    return tuple(chunks)


def check_finite(values: Tensor, layers: Sequence[Layer], lengths: Sequence[int], what: str) -> None:
    """Refuse to go on with NaN or inf, naming the layer; `lengths` says how many of the values belong to each."""
    if not len(values):
        return
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

    `target`: the weights that are active in the end; `budget`: those that are to be active now. `goal`: the active
    units that the target and the method's distribution give each layer. `pruned`: how many units go, all 0 while that
    is not yet known.
    """

    unit_sizes: tuple[int, ...]
    num_units: tuple[int, ...]
    active: tuple[int, ...]
    goal: tuple[int, ...]
    target: int
    budget: int
    pruned: tuple[int, ...]

    @cached_property
    def free(self) -> list[int]:
        """Places that were free before pruning: where a unit may grow, since a just-pruned one may not return."""
        return list(map(sub, self.num_units, self.active))

    @cached_property
    def survivors(self) -> list[int]:
        return list(map(sub, self.active, self.pruned))

    @cached_property
    def open_weights(self) -> int:
        """How many weights may grow: the budget less what survives."""
        return self.budget - self.weights_in(self.survivors)

    def weights_in(self, counts: Sequence[int]) -> int:
        """How many weights so many units of each layer are."""
        return sum(map(mul, counts, self.unit_sizes))

    def of(self, layers: Sequence[int]) -> "Tally":
        """Some of the layers, whose budget is what they hold."""

        def pick(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(numbers[i] for i in layers)

        sizes, active = pick(self.unit_sizes), pick(self.active)
        held: int = sum(map(mul, active, sizes))
        return Tally(sizes, pick(self.num_units), active, pick(self.goal), held, held, pick(self.pruned))
