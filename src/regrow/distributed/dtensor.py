"""Torch's distributed tensors: what of them is here, what is elsewhere, and on which ranks."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup
    from torch.distributed.tensor import DTensor


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


def laid_out_like(tensor: Tensor, here: Tensor, parameter: Tensor) -> Tensor:
    """A tensor where, and in the order in which, what is here of a parameter is in memory now."""
    made = torch.empty_like(here, dtype=tensor.dtype).copy_(local(tensor))
    return like(made, parameter) if is_sharded(tensor) else made


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
