"""Masks that people hand in: what makes them fit."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.distributed.dtensor import whole


def num_strays(tensor: Tensor, mask: Tensor) -> int:
    """How many values are not 0 where nothing is active."""
    return int(tensor.masked_fill(mask, 0).count_nonzero())


def count_strays(weights: Sequence[Tensor], masks: Sequence[Tensor]) -> list[int]:
    """The same of each layer, told by a device all at once."""
    counts = [weight.masked_fill(mask, 0).count_nonzero() for weight, mask in zip(weights, masks, strict=True)]
    found: list[int] = torch.stack([own.to(counts[0].device) for own in counts]).tolist()
    return found


def check_zeros(layers: Sequence[Layer], strays: Sequence[int]) -> None:
    """Refuse weights that are not 0 where nothing is active, at so many places of each layer."""
    for layer, count in zip(layers, strays, strict=True):
        if count:
            raise ValueError(
                f"{layer.name} is not 0 at {count:,} of the places where no weight is active; weights that come from "
                "elsewhere need their own topology: load the state of the sparsifier that was saved with them, or give "
                "it to attach(..., resume=state)"
            )


def check_shapes(layers: Sequence[Layer], parameters: Sequence[Tensor]) -> None:
    """Refuse parameters that were reshaped under their masks."""
    for layer, parameter in zip(layers, parameters, strict=True):
        if parameter.shape != layer.shape:
            raise RuntimeError(
                f"{layer.name} does not have the shape {layer.shape} any more that it was attached with; detach before "
                "parameters are reshaped or sharded, and attach again"
            )


def check_masks(masks: Mapping[str, Tensor], layers: Sequence[Layer]) -> list[int]:
    """How many units of each layer are in masks; refused if these do not fit, unit by unit, with something in each.

    Of masks that are spread over ranks one after the other is made whole.
    """
    if not isinstance(masks, Mapping):
        raise ValueError(f"masks must be given by the name of their layer, got {type(masks).__name__}")
    names = {layer.name for layer in layers}
    if set(masks) != names:
        missing, extra = sorted(names - set(masks)), sorted(set(masks) - names)
        raise ValueError(
            f"masks and sparse layers differ (missing: {missing[:5]}, unknown: {extra[:5]}); give one for each layer"
        )
    counts = []
    for layer in layers:
        mask = masks[layer.name]
        mask = whole(mask) if isinstance(mask, Tensor) else mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != layer.shape:
            raise ValueError(f"the mask of {layer.name} must be a bool tensor of shape {layer.shape}")
        if not bool(mask.any()):
            raise ValueError(f"the mask of {layer.name} is empty; leave at least one unit active in each layer")
        if not layer.cuts_no_unit(mask):
            raise ValueError(f"the mask of {layer.name} cuts through units; make it constant within each of them")
        counts.append(int(layer.reduce(mask).count_nonzero()))
    return counts
