"""Saved states: what makes one fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.methods.method import Method

STATE_VERSION = 1
_CONTRADICTS = "the state contradicts itself; it was changed or damaged after it was saved"
_KEYS = {
    "version",
    "method",
    "granularity",
    "seed",
    "step",
    "budget",
    "goal",
    "memory",
    "masks",
    "companions",
    "history",
}


def check_state(state: Mapping[str, Any], method: Method, layers: Sequence[Layer]) -> None:
    """Refuse a state that is damaged or belongs to another method or model."""
    if not isinstance(state, Mapping) or not set(state) >= _KEYS:
        raise ValueError("this is not the state of a sparsifier; pass what sparsifier.state_dict() returned")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']}, this regrow reads {STATE_VERSION}; use the one that wrote it"
        )
    name = type(method).__name__
    if state["method"] != name:
        raise ValueError(f"the state is of {state['method']}, this sparsifier runs {name}; attach with the same method")
    if state["granularity"] != method.granularity:
        raise ValueError(
            f"the state has granularity {state['granularity']!r}, the method {method.granularity!r}; use the same"
        )
    numbers = [state["seed"], state["step"], state["budget"], *state["goal"]]
    fits = len(state["goal"]) == len(layers) and all(isinstance(number, int) for number in numbers)
    if not fits or not isinstance(state["memory"], Mapping):
        raise ValueError(_CONTRADICTS)


def check_topology(state: Mapping[str, Any], layers: Sequence[Layer], keeps_budget: bool) -> None:
    """Refuse a state whose masks and companions do not fit the layers, or its budget."""
    if "positions" in state:
        raise ValueError("the state is one of packed storage; attach with storage='packed' to load it")
    check_masks(state["masks"], layers)
    active = sum(int(state["masks"][layer.name].count_nonzero()) for layer in layers)
    if keeps_budget and active > state["budget"]:
        raise ValueError(_CONTRADICTS)
    for kind, tensors in state["companions"].items():
        for layer in layers:
            if layer.name not in tensors or tuple(tensors[layer.name].shape) != layer.shape:
                raise ValueError(f"the state's {kind} does not fit layer {layer.name}; is it from another model?")


def check_positions(state: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Refuse a state whose lists of positions and companions do not fit the layers one to one."""
    if "positions" not in state:
        raise ValueError("the state is one of dense storage; attach with storage='dense' to load it")
    if not isinstance(state.get("kernels"), Mapping):
        raise ValueError(_CONTRADICTS)
    if set(state["positions"]) != {layer.name for layer in layers}:
        raise ValueError("the state has other sparse layers; attach with the same layers")
    for layer in layers:
        positions = state["positions"][layer.name]
        is_list = isinstance(positions, Tensor) and positions.dtype in (torch.int32, torch.int64)
        if not is_list or positions.ndim != 1 or not len(positions):
            raise ValueError(_CONTRADICTS)
        num_columns = layer.num_weights // layer.shape[0]
        logical = positions.long()
        stored = logical % num_columns * layer.shape[0] + logical // num_columns
        is_inside = int(logical.amin()) >= 0 and int(logical.amax()) < layer.num_weights
        if not is_inside or not bool((stored[1:] > stored[:-1]).all()):
            raise ValueError(f"the state's positions do not fit layer {layer.name}; is it from another model?")
        companions = [tensors.get(layer.name) for tensors in state["companions"].values()]
        if any(not isinstance(own, Tensor) or own.shape != positions.shape for own in companions):
            raise ValueError(_CONTRADICTS)
    if sum(len(state["positions"][layer.name]) for layer in layers) != state["budget"]:
        raise ValueError(_CONTRADICTS)


def check_masks(masks: Mapping[str, Tensor], layers: Sequence[Layer]) -> None:
    """Refuse masks that do not fit the layers one to one, unit by unit, with something active in each."""
    names = {layer.name for layer in layers}
    if set(masks) != names:
        missing, extra = sorted(names - set(masks)), sorted(set(masks) - names)
        raise ValueError(
            f"masks and sparse layers differ (missing: {missing[:5]}, unknown: {extra[:5]}); give one for each layer"
        )
    for layer in layers:
        mask = masks[layer.name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != layer.shape:
            raise ValueError(f"the mask of {layer.name} must be a bool tensor of shape {layer.shape}")
        if not bool(mask.any()):
            raise ValueError(f"the mask of {layer.name} is empty; leave at least one unit active in each layer")
        within = [dim for dim in range(mask.ndim) if dim not in layer.unit_dims]
        if within and not bool((mask.amax(within) == mask.amin(within)).all()):
            raise ValueError(f"the mask of {layer.name} cuts through units; make it constant within each of them")
