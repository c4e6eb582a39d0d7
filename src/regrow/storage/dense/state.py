"""What makes a saved state fit a network in dense storage."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regrow.core.units import Layer
from regrow.storage.base import check_keys, check_kind, check_like
from regrow.storage.check_masks import check_masks


def check_state(state: Mapping[str, Any], layers: Sequence[Layer], beside: Mapping[str, Sequence[Tensor]]) -> list[int]:
    """Refuse a state that does not fit; the active units of each layer that it has.

    `beside`: of each kind a tensor for every layer.
    """
    check_kind(state, "dense", {"masks", "beside"})
    counts = check_masks(state["masks"], layers)
    check_keys(state["beside"], beside, "beside")
    for kind, tensors in beside.items():
        theirs = state["beside"][kind]
        check_keys(theirs, [layer.name for layer in layers], kind)
        for layer, tensor in zip(layers, tensors, strict=True):
            check_like(theirs[layer.name], tensor, f"{kind} of {layer.name}")
    return counts
