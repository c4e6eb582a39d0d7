"""What a sparsifier tells other ranks of itself, and from whom it differs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regrow.core.units import Layer
from regrow.distributed.agreement import check_agreement, fingerprint
from regrow.distributed.dtensor import all_groups_of, is_over, is_sharded, local
from regrow.distributed.sharding import is_on_any_of
from regrow.distributed.wrappers import check_averages, replicas_of
from regrow.methods.method import Method
from regrow.storage.base import Chosen

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup

    from regrow.sparsifier.steps import Steps


def compare_shards(chosen: Chosen, method: Method, seed: int, how: str) -> None:
    """Refuse, before anything is changed, to attach where ranks that have parts of one network do not attach alike."""
    told = {
        "layers": _in_words([layer for layer, _ in chosen], [parameter for _, parameter in chosen]),
        "method": _told(method),
        "seed": seed,
        "start": how,
    }
    for group in _groups([parameter for _, parameter in chosen]):
        check_agreement(told, group, ValueError, "attached nothing")


def has_gradients(parameters: Sequence[Tensor]) -> bool:
    """Without any, a step is only taken to make an optimizer's state, and weights are loaded after it."""
    are_some = any(own.grad is not None and bool(local(own.grad).any()) for own in parameters)
    return is_on_any_of(parameters, are_some)


def compare_ranks(steps: "Steps") -> None:
    """Refuse to go on where ranks that train one network are not sparse alike."""
    parameters = steps.belonging.parameters
    groups = {}
    for wrapper in replicas_of([own for own in parameters if not is_sharded(own)]):
        check_averages(wrapper, parameters)
        groups[wrapper.process_group.group_name] = wrapper.process_group
    for group in [*groups.values(), *_groups(parameters)]:
        check_agreement(_digest(steps, group), group)


def _groups(parameters: Sequence[Tensor]) -> "list[ProcessGroup]":
    """All groups of ranks that have the same or other parts of any of these, each once."""
    return list({group.group_name: group for own in parameters for group in all_groups_of(own)}.values())


def _digest(steps: "Steps", group: "ProcessGroup") -> dict[str, Any]:
    """What has to be the same on all ranks: in words, or as a fingerprint of what all of them have."""
    storage, parameters = steps.storage, steps.belonging.parameters
    shared = [own for own in parameters if not is_over(own, group)]
    gradients = [own.grad if own.grad is None else local(own.grad) for own in shared if steps.method.rewires]
    return {
        "layers": _in_words(storage.layers, parameters),
        "method": _told(steps.method),
        "moments": steps.moments.how,
        "seed": steps.seed,
        "step": steps.number,
        "topology": fingerprint(_topology(storage.state(), group)),
        "counts": list(steps.tally.active),
        "weights": fingerprint(map(local, shared)),
        "gradients": fingerprint(gradients),
    }


def _in_words(layers: Sequence[Layer], parameters: Sequence[Tensor]) -> dict[str, str]:
    """The shape of each layer, and how it is spread."""
    if len(layers) != len(parameters):
        return {layer.name: "x".join(map(str, layer.shape)) for layer in layers}
    return {
        layer.name: "x".join(map(str, layer.shape)) + (f" {own.placements}" if is_sharded(own) else "")
        for layer, own in zip(layers, parameters, strict=True)
    }


def _told(method: Method) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(method))


def _topology(state: Mapping[str, Any], group: "ProcessGroup") -> Iterable[Tensor]:
    """Of a storage's state what says which weights are active, as far as all ranks of a group have it."""
    masks = [local(mask) for mask in state.get("masks", {}).values() if not is_over(mask, group)]
    return [*masks, *([state["positions"]] if "positions" in state else [])]
