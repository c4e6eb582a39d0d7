"""The gradients of a step that a rewiring will look at, as they were before anything was done to them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core.row import Chunk
from regrow.core.selections import positions_of
from regrow.core.units import Layer
from regrow.storage.base import dtype_of_gradient


class KeptGradients:
    """Of all places, a tensor like each layer's weights; or of the active units of each layer alone, flat."""

    def __init__(self) -> None:
        self.everywhere: list[Tensor] | None = None
        self.active: list[Tensor] | None = None

    def of_active(self, chunk: Chunk) -> dict[str, Tensor]:
        """Those of a chunk's active units by name, where these alone were kept."""
        kept = chunk.of(self.active or [])
        return {"gradient": torch.cat(list(kept))} if kept else {}

    def keep_everywhere(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        masks: Sequence[Tensor],
        fresh: Sequence[int],
        scale: Tensor | None,
    ) -> None:
        """Of a gradient that is not fresh, what stands at inactive places, which were 0, came since and is added."""
        if self.everywhere is None:
            self.everywhere = [torch.zeros_like(own, dtype=dtype_of_gradient(own)) for own in weights]
        for i, (gradient, mask, kept) in enumerate(zip(gradients, masks, self.everywhere, strict=True)):
            if gradient is None:
                continue
            gradient = gradient if scale is None else gradient / scale
            if i in fresh:
                kept.copy_(gradient)
            else:
                kept.add_(gradient.masked_fill(mask, 0))

    def keep_active(
        self,
        layers: Sequence[Layer],
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        active: Sequence[Tensor],
        fresh: Sequence[int],
        scale: Tensor | None,
    ) -> None:
        """Of a gradient that is not fresh, which may be clipped or have an L1 term by now, what was kept stays."""
        places = [positions_of(units) for units in active]
        if self.active is None:
            pairs = zip(places, weights, strict=True)
            self.active = [torch.zeros(len(own), dtype=dtype_of_gradient(w), device=w.device) for own, w in pairs]
        for i in fresh:
            gradient = gradients[i]
            assert gradient is not None
            kept = layers[i].flatten(gradient).index_select(0, places[i])
            self.active[i].copy_(kept if scale is None else kept / scale)
