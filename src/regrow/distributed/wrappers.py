"""What torch puts around models and optimizers for several ranks: where it is found, and what of it is refused."""

import gc
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from regrow.core.names import named_parameters


def replicas_of(parameters: Iterable[Tensor]) -> list[DistributedDataParallel]:
    """Every DistributedDataParallel around any of these parameters.

    Neither model nor parameters know of it, and whoever attaches inside a trainer has the inner model alone; so Python
    is asked for all there are, once for each sparsifier and only where there are ranks.
    """
    if not has_ranks():
        return []
    ours = {id(parameter) for parameter in parameters}
    found = _replicas_of(ours)
    if found:
        del found
        gc.collect()  # one that nobody uses any more may only be waiting for collection
        found = _replicas_of(ours)
    return found


def _replicas_of(ours: set[int]) -> list[DistributedDataParallel]:
    kinds = [DistributedDataParallel]
    for kind in kinds:
        kinds += kind.__subclasses__()
    every = [thing for thing in gc.get_referrers(*kinds) if isinstance(thing, DistributedDataParallel)]
    return [wrapper for wrapper in every if any(id(parameter) in ours for parameter in wrapper.parameters())]


def check_averages(wrapper: DistributedDataParallel, parameters: Iterable[Tensor]) -> None:
    """Refuse parameters that came into a module after it was wrapped: each rank would train its own."""
    inside = {id(parameter): name for name, parameter in named_parameters(wrapper)}
    known = {id(parameter) for parameter in wrapper._module_parameters}
    late = [inside[id(p)] for p in parameters if p.requires_grad and id(p) in inside and id(p) not in known]
    if late:
        raise RuntimeError(
            f"DistributedDataParallel was built before {late[0]} was in the model, and does not average its gradients; "
            "attach first, and wrap the model then"
        )


def reshard(model: nn.Module) -> None:
    """Let a model that FSDP keeps whole between passes have its own parameters again."""
    for module in model.modules():
        if _is_a(module, "torch.distributed.fsdp", "FSDPModule"):
            made: Any = module
            made.reshard()


def has_ranks() -> bool:
    """Whether this process is one of a job."""
    return dist.is_available() and dist.is_initialized()


def check_not_sharded(model: object, optimizer: object) -> None:
    """Refuse what no rank holds whole, for the same reason on all of them."""
    instead = "which is not supported yet; attach to a model that every rank holds whole, as in DistributedDataParallel"
    if _is_a(optimizer, "torch.distributed.optim", "ZeroRedundancyOptimizer"):
        raise ValueError(
            "ZeroRedundancyOptimizer keeps the state of a weight on one rank only, which is not supported yet; use the "
            "optimizer inside it on every rank"
        )
    if not isinstance(model, nn.Module):
        return  # which is refused for that
    if any(_is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel") for module in model.modules()):
        raise ValueError(f"the model is sharded over ranks by FullyShardedDataParallel, {instead}")
    for name, parameter in named_parameters(model):
        if getattr(parameter, "_fsdp_flattened", False):
            raise ValueError(f"{name} is sharded over ranks by FullyShardedDataParallel, {instead}")


def _is_a(thing: object, module: str, name: str) -> bool:
    """Whether a thing is of a class that is imported only by those who use it."""
    kind: Any = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(thing, kind)
