"""Networks that several processes train: every one with a copy of its own, or with a part of each weight."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_BLOCK = 1 << 16  # parameters, fewer of which are not worth a message of their own


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """Average gradients; running statistics are those of the first rank's part of each batch."""
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def shard(model: nn.Module, num_ranks: int, device: torch.device) -> None:
    """Leave each rank a part of every weight, which are put together block by block while they are used."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (num_ranks,))
    for block in reversed(_blocks(model)):  # the innermost first
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """What networks repeat: the larger members of their sequences."""
    members = [
        child for module in model.modules() if isinstance(module, (nn.Sequential, nn.ModuleList)) for child in module
    ]
    called = [child for child in members if not isinstance(child, (nn.ModuleList, nn.ModuleDict))]
    return [child for child in called if sum(parameter.numel() for parameter in child.parameters()) >= _BLOCK]


def whole(state: Any) -> Any:
    """A state without shards, which all ranks ask for together: the same as if there had never been any."""
    if isinstance(state, Mapping):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state.full_tensor() if _is_shard(state) else state


def dealt(state: Any, like: Any) -> Any:
    """Of a whole state what this rank has of it, as in its own."""
    if isinstance(state, Mapping) and isinstance(like, Mapping):
        return {key: dealt(value, like.get(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)) and isinstance(like, (list, tuple)) and len(state) == len(like):
        return type(state)(map(dealt, state, like))
    if not _is_shard(like) or not isinstance(state, Tensor) or state.shape != like.shape:
        return state
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(state.to(like.device), like.device_mesh, like.placements)


def dealt_to_optimizer(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The same of an optimizer's, which need not have one yet: momentum and the like lie where their weights do."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_each = {
        number: {name: dealt(value, parameters[number]) for name, value in own.items()}
        for number, own in state["state"].items()
    }
    return {**state, "state": of_each}


def _is_shard(thing: Any) -> bool:
    return isinstance(thing, Tensor) and hasattr(thing, "full_tensor")
