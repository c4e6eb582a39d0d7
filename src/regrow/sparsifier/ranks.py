"""What a sparsifier tells other ranks of itself, and from whom it differs."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regrow.distributed.agreement import check_agreement, fingerprint
from regrow.distributed.wrappers import check_averages, replicas_of

if TYPE_CHECKING:
    from regrow.sparsifier.steps import Steps


def compare_ranks(steps: "Steps") -> None:
    """Refuse to go on where DistributedDataParallel averages the gradients of ranks that are not sparse alike."""
    parameters = steps.belonging.parameters
    groups = {}
    for wrapper in replicas_of(parameters):
        check_averages(wrapper, parameters)
        groups[id(wrapper.process_group)] = wrapper.process_group
    for group in groups.values():
        check_agreement(_digest(steps), group)


def _digest(steps: "Steps") -> dict[str, Any]:
    """What has to be the same on all ranks: in words, or as a fingerprint."""
    storage, parameters = steps.storage, steps.belonging.parameters
    return {
        "layers": {layer.name: "x".join(map(str, layer.shape)) for layer in storage.layers},
        "method": re.sub(" at 0x[0-9a-f]+", "", repr(steps.method)),
        "seed": steps.seed,
        "step": steps.number,
        "topology": fingerprint(_topology(storage.state())),
        "weights": fingerprint(parameters),
        "gradients": fingerprint(parameter.grad for parameter in parameters if steps.method.rewires),
    }


def _topology(state: Mapping[str, Any]) -> Iterable[Tensor]:
    """Of a storage's state what says which weights are active."""
    masks = state.get("masks", {})
    return [*masks.values(), *([state["positions"]] if "positions" in state else [])]
