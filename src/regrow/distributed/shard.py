"""The part of a layer that is on this rank: which indices of each dimension, and how its units are numbered here."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from regrow.core.row import Chunk, cut_into_chunks
from regrow.core.units import Layer

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup
    from torch.distributed.tensor import DTensor


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
        ends = torch.tensor(self.begins[1:], device=positions.device)
        up_to = [0, *torch.searchsorted(positions, ends).tolist()]
        pieces = torch.split(positions, [end - begin for begin, end in pairwise(up_to)])
        return torch.cat(
            [
                layer.inward(own - begin)[0] + offset
                for layer, own, offset, begin in zip(self.layers, pieces, self.offsets, self.begins, strict=False)
            ]
        )

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


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Whether a tensor is one that torch distributes over ranks; it may be whole on each of them."""
    kind: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return isinstance(kind, type) and isinstance(tensor, kind)


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """What of a tensor is on this rank."""
    return tensor.to_local() if is_sharded(tensor) else tensor


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank, which must all ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def like(here: Tensor, parameter: Tensor) -> Tensor:
    """What is here as a part of a tensor that is distributed like a parameter."""
    if not is_sharded(parameter):
        return here
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    kind: Any = type(parameter.detach())
    made: Tensor = kind.from_local(here, mesh, placements, run_check=False, shape=shape, stride=stride)
    return made


@torch.no_grad()
def gradient_here(parameter: Tensor) -> Tensor:
    """What of a parameter's gradient is on this rank, spread as the parameter is from now on if it was not."""
    gradient = parameter.grad
    assert gradient is not None
    if is_sharded(parameter) and is_sharded(gradient) and gradient.placements != parameter.placements:
        gradient = parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return local(gradient)


def part_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """What of a tensor, whole or distributed in whatever way, is here of a parameter of its shape."""
    if not is_sharded(parameter):
        return whole(tensor)
    if is_sharded(tensor) and tensor.device_mesh == parameter.device_mesh and tensor.placements == parameter.placements:
        return local(tensor)
    tensor = whole(tensor)
    for dim, here in enumerate(indices_here(parameter)):
        if len(here) < tensor.shape[dim]:
            tensor = tensor.index_select(dim, here.to(tensor.device))
    return tensor


def indices_here(parameter: Tensor) -> tuple[Tensor, ...]:
    """Which indices along each dimension are on this rank, ascending; refused if torch has it otherwise."""
    found = [torch.arange(size) for size in parameter.shape]
    if is_sharded(parameter):
        at = parameter.device_mesh.get_coordinate()
        assert at is not None
        # FSDP cuts, in strides as torch calls it, what tensor parallelism has cut already
        for mesh_dim, placement in sorted(_cuts(parameter), key=lambda own: hasattr(own[1], "split_factor")):
            pieces = found[placement.dim].chunk(parameter.device_mesh.size(mesh_dim))
            found[placement.dim] = pieces[at[mesh_dim]] if at[mesh_dim] < len(pieces) else pieces[0][:0]
        if tuple(map(len, found)) != tuple(local(parameter).shape):
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is sharded as {parameter.placements}, of which it is "
                "not known what lies where; leave it out of layers"
            )
    return tuple(found)


def is_over(parameter: Tensor, group: "ProcessGroup") -> bool:
    """Whether the ranks of a group have different parts of a parameter."""
    return any(own.group_name == group.group_name for own in groups_of(parameter))


def groups_of(parameter: Tensor) -> "list[ProcessGroup]":
    """The groups over which a parameter is sharded, one for each dimension of its mesh that does."""
    if not is_sharded(parameter):
        return []
    mesh = parameter.device_mesh
    return [mesh.get_group(mesh_dim) for mesh_dim, _ in _cuts(parameter) if mesh.size(mesh_dim) > 1]


def all_groups_of(parameter: Tensor) -> "list[ProcessGroup]":
    """Those over which it is replicated, too."""
    if not is_sharded(parameter):
        return []
    mesh = parameter.device_mesh
    return [mesh.get_group(mesh_dim) for mesh_dim in range(mesh.ndim) if mesh.size(mesh_dim) > 1]


def _cuts(parameter: "DTensor") -> list[tuple[int, Any]]:
    """The dimensions of a mesh that shard a parameter, and how."""
    return [
        (mesh_dim, placement)
        for mesh_dim, placement in enumerate(parameter.placements)
        if getattr(placement, "dim", None) is not None
    ]
