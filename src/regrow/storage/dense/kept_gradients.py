"""The gradients of a step that a rewiring will look at, as they were before anything was done to them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core.selections import positions_of
from regrow.core.units import Layer
from regrow.storage.base import dtype_of_gradient


class KeptGradients:
    """Of all places, a tensor like each layer's weights; or of the active units of each layer alone, flat."""

    def __init__(self) -> None:
        self.everywhere: list[Tensor] | None = None
        self.active: list[Tensor] | None = None

    def keep_everywhere(
        self, parameters: Sequence[Tensor], masks: Sequence[Tensor], fresh: Sequence[int], scale: Tensor | None
    ) -> None:
        """Of a gradient that is not fresh, what stands at inactive places, which were 0, came since and is added."""
        if self.everywhere is None:
            self.everywhere = [torch.zeros_like(own.detach(), dtype=dtype_of_gradient(own)) for own in parameters]
        for i, (parameter, mask, kept) in enumerate(zip(parameters, masks, self.everywhere, strict=True)):
            if parameter.grad is None:
                continue
            gradient = parameter.grad if scale is None else parameter.grad / scale
            if i in fresh:
                kept.copy_(gradient)
            else:
                kept.add_(gradient.masked_fill(mask, 0))

    def keep_active(
        self,
        layers: Sequence[Layer],
        parameters: Sequence[Tensor],
        active: Sequence[Tensor],
        fresh: Sequence[int],
        scale: Tensor | None,
    ) -> None:
        """Of a gradient that is not fresh, which may be clipped or have an L1 term by now, what was kept stays."""
        places = [positions_of(units) for units in active]
        if self.active is None:
            pairs = zip(places, parameters, strict=True)
            self.active = [torch.zeros(len(own), dtype=dtype_of_gradient(p), device=p.device) for own, p in pairs]
        for i in fresh:
            gradient = parameters[i].grad
            assert gradient is not None
            kept = layers[i].flatten(gradient).index_select(0, places[i])
            self.active[i].copy_(kept if scale is None else kept / scale)
