"""The part of a layer that is on this rank: which indices of each dimension, and how its units are numbered here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from regrow.core.row import Chunk, cut_into_chunks
from regrow.core.units import Layer


@dataclass(frozen=True, eq=False)
class Shard(Layer):
    """A layer of the units of which something is here, numbered as they come in the whole layer.

    `here`: the indices along each dimension of the whole tensor that are on this rank, ascending.
    """

    whole: Layer
    here: tuple[Tensor, ...]

    @cached_property
    def coordinates(self) -> tuple[Tensor, ...]:
        """Where along each dimension, counted in units, there is something here."""
        return tuple(torch.unique(own // step) for own, step in zip(self.here, self.unit_shape, strict=True))

    @cached_property
    def grid(self) -> tuple[int, ...]:
        return tuple(len(self.coordinates[dim]) for dim in self.unit_dims)

    @cached_property
    def _inward(self) -> tuple[Tensor, ...]:
        """Which of the units here each index belongs to, along each dimension."""
        pairs = zip(self.coordinates, self.here, self.unit_shape, strict=True)
        return tuple(torch.searchsorted(own, here // step) for own, here, step in pairs)

    @cached_property
    def _shift(self) -> int | None:
        """What lies before this part, where it is one piece of the whole."""
        if not self.num_units:
            return 0
        own = [self.coordinates[dim] for dim in self.unit_dims]
        is_piece = len(own[0]) == int(own[0][-1] - own[0][0]) + 1 and self.grid[1:] == self.whole.grid[1:]
        return int(own[0][0]) * prod(self.whole.grid[1:]) if is_piece else None

    def outward(self, units: Tensor) -> Tensor:
        """The numbers in the whole layer of some units here."""
        if self._shift is not None:
            return units + self._shift
        at = torch.unravel_index(units, self.grid)
        found = torch.zeros_like(units)
        for dim, size, own in zip(self.unit_dims, self.whole.grid, at, strict=True):
            found = found * size + self.coordinates[dim].to(units.device)[own]
        return found

    def inward(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Where units of the whole layer are here, and whether they are here at all."""
        if not self.num_units:
            return torch.zeros_like(numbers), torch.zeros_like(numbers, dtype=torch.bool)
        if self._shift is not None:
            units = numbers - self._shift
            return units, (units >= 0).logical_and_(units < self.num_units)
        found, are_here = torch.zeros_like(numbers), torch.ones_like(numbers, dtype=torch.bool)
        for dim, own in zip(self.unit_dims, torch.unravel_index(numbers, self.whole.grid), strict=True):
            known = self.coordinates[dim].to(numbers.device)
            at = torch.searchsorted(known, own.contiguous()).clamp_(max=len(known) - 1)
            are_here &= known[at] == own
            found = found * len(known) + at
        return found, are_here

    def index(self, units: Tensor, dim: int) -> Tensor:
        return self.whole.index(self.outward(units), dim)

    @cached_property
    def counted(self) -> Tensor | None:
        """Which units begin here, so that this rank counts them; None for all."""
        if self.is_fine:
            return None
        per_dim = zip(self.coordinates, self.here, self.unit_shape, strict=True)
        begins = [torch.isin(own * step, here) for own, here, step in per_dim]
        flags = over_grid([begins[dim] for dim in self.unit_dims])
        return None if bool(flags.all()) else flags

    # Units of several weights, of which a part may be here

    def flatten(self, tensor: Tensor) -> Tensor:
        assert self.is_fine, "a unit may go on elsewhere"
        return super().flatten(tensor)

    def gather(self, tensor: Tensor, how: str) -> Tensor:
        """The "sum" or "amax" of each unit's part of a tensor that is nowhere negative."""
        for dim, at in enumerate(self._inward):
            size = [*tensor.shape[:dim], len(self.coordinates[dim]), *tensor.shape[dim + 1 :]]
            index = at.to(tensor.device).view(-1, *(1,) * (tensor.ndim - dim - 1)).expand(tensor.shape)
            tensor = tensor.new_zeros(size).scatter_reduce_(dim, index, tensor, how)
        return tensor.reshape(-1)

    def spread(self, units: Tensor, into: Tensor) -> None:
        into.copy_(self.for_every_weight(units))

    def for_every_weight(self, units: Tensor) -> Tensor:
        """Numbers of the units here, flat, for every weight here."""
        units = units.view(self.grid)
        for dim, at in enumerate(self._inward):
            units = units.index_select(dim, at.to(units.device))
        return units

    def reduce(self, mask: Tensor) -> Tensor:
        return super().reduce(mask) if self.is_fine else self.gather(mask.to(torch.uint8), "amax").bool()

    def incomplete(self) -> Tensor:
        """For each coordinate of the whole grid, one dimension after the other, 1 where a part only is here."""
        flags = [torch.empty(0, dtype=torch.bool)]
        if self.is_fine:
            return flags[0].to(torch.uint8)
        for dim, size in zip(self.unit_dims, self.whole.grid, strict=True):
            number = torch.bincount(self.here[dim] // self.unit_shape[dim], minlength=size)
            flags.append((number > 0) & (number < self.unit_shape[dim]))
        return torch.cat(flags).to(torch.uint8)

    def cuts_no_unit(self, mask: Tensor) -> bool:
        return self.is_fine or torch.equal(self.for_every_weight(self.reduce(mask)), mask)

    def put(self, tensor: Tensor, units: Tensor, value: float | Tensor) -> None:
        if self.is_fine:
            super().put(tensor, units, value)
            return
        flags = torch.zeros(self.num_units, dtype=torch.bool, device=tensor.device).index_fill_(0, units, True)
        values = torch.zeros(self.num_units, dtype=tensor.dtype, device=tensor.device)
        values[units] = value if isinstance(value, Tensor) else torch.tensor(value, dtype=tensor.dtype)
        torch.where(self.for_every_weight(flags), self.for_every_weight(values), tensor, out=tensor)


def over_grid(along: Sequence[Tensor]) -> Tensor:
    """Flags of all places in a grid, flat: true where those of all their coordinates are."""
    flags = torch.ones((), dtype=torch.bool)
    for own in along:
        flags = flags.unsqueeze(-1) & own
    return flags.reshape(-1)


@dataclass(frozen=True)
class ShardedChunk(Chunk):
    """A chunk of shards; `begins` and `ends_at`: where the whole layers begin and end in the row."""

    layers: tuple[Shard, ...]
    begins: tuple[int, ...]

    def positions(self, places: Tensor) -> Tensor:
        pieces = torch.split(places, self.count_per_layer(places))
        return torch.cat(
            [
                layer.outward(own - offset) + begin
                for layer, own, offset, begin in zip(self.layers, pieces, self.offsets, self.begins, strict=False)
            ]
        )

    def places(self, positions: Tensor) -> Tensor:
        """Where ascending positions in the row are here; those that are elsewhere are left out."""
        ends = torch.tensor(self.begins[1:], device=positions.device)
        up_to = [0, *torch.searchsorted(positions, ends).tolist()]
        pieces = torch.split(positions, [end - begin for begin, end in pairwise(up_to)])
        found = []
        for layer, own, offset, begin in zip(self.layers, pieces, self.offsets, self.begins, strict=False):
            units, are_here = layer.inward(own - begin)
            found.append(units[are_here] + offset)
        return torch.cat(found)

    @cached_property
    def counted(self) -> Tensor | None:
        """Which units this rank counts; None for all."""
        own = [layer.counted for layer in self.layers]
        if all(flags is None for flags in own):
            return None
        pairs = zip(self.layers, own, strict=True)
        flags = [torch.ones(layer.num_units, dtype=torch.bool) if f is None else f for layer, f in pairs]
        return torch.cat(flags).to(self.device)

    def count(self, places: Tensor) -> list[int]:
        """How many of some ascending places this rank counts, of each layer."""
        return self.count_per_layer(places if self.counted is None else places[self.counted[places]])


def cut_shards(shards: Sequence[Shard], devices: Sequence[torch.device], limit: int | None) -> tuple[ShardedChunk, ...]:
    """Chunks of what is here of each layer."""
    begins = [0]
    for shard in shards:
        begins.append(begins[-1] + shard.whole.num_units)
    made = []
    for chunk in cut_into_chunks(shards, devices, limit):
        own = slice(chunk.own.start, chunk.own.stop)
        bounds = tuple(begins[own.start : own.stop + 1])
        made.append(ShardedChunk(chunk.first, bounds[0], tuple(shards[own]), chunk.offsets, chunk.device, bounds))
    return tuple(made)
