"""Which units are active: one flat bool tensor per chunk, and seen from there a mask like each layer's weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core.row import Chunk
from regrow.core.units import Layer

WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The whole numbers of as many bytes."""
_IN_CACHE = 1 << 18


class Topology:
    """`masks` has one tensor per layer, shaped and laid out like its weights.

    It is a view of the active flags, `units`, where every weight is a unit, their expansion where units are coarse.
    """

    def __init__(self, chunks: Sequence[Chunk], weights: Sequence[Tensor]) -> None:
        self.active = [torch.ones(chunk.num_units, dtype=torch.bool, device=chunk.device) for chunk in chunks]
        self.units = [view for chunk, own in zip(chunks, self.active, strict=True) for view in chunk.split(own)]
        self._layers = [layer for chunk in chunks for layer in chunk.layers]
        self.is_view = all(layer.is_fine for layer in self._layers)
        self.masks = [
            layer.unflatten(units) if layer.is_fine else torch.ones_like(weight, dtype=torch.bool)
            for layer, units, weight in zip(self._layers, self.units, weights, strict=True)
        ]

    def set_places(self, places: Sequence[Tensor]) -> None:
        """Take over the active places of each chunk."""
        for active, own in zip(self.active, places, strict=True):
            active.fill_(False).index_fill_(0, own, True)
        self.expand()

    def set_masks(self, masks: Sequence[Tensor]) -> None:
        """Take over one full-size mask per layer."""
        for layer, units, mask in zip(self._layers, self.units, masks, strict=True):
            units.copy_(layer.reduce(mask))
        self.expand()

    def count(self) -> list[int]:
        """How many units of each layer are active, here."""
        return [int(units.count_nonzero()) for units in self.units]

    def expand(self) -> None:
        """Let masks follow the flags where units are coarse."""
        for layer, units, mask in zip(self._layers, self.units, self.masks, strict=True):
            if not layer.is_fine:
                layer.spread(units, mask)


def flat_view(layer: Layer, weight: Tensor) -> Tensor | None:
    """The units of a tensor in row order, where that is how they are in memory."""
    if not layer.is_fine:
        return None
    flat = layer.flatten(weight)
    return flat if flat.data_ptr() == weight.data_ptr() else None


def in_pieces(tensors: Sequence[Tensor], mask: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors and their mask, row by row where they are large: for a product torch copies the mask as numbers."""
    if mask.numel() <= _IN_CACHE:
        return list(tensors), [mask] * len(tensors)
    rows = max(_IN_CACHE * len(mask) // mask.numel(), 1)
    return [piece for tensor in tensors for piece in torch.split(tensor, rows)], [*torch.split(mask, rows)] * len(
        tensors
    )
