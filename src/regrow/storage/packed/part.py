"""A chunk of packed layers at the moment of a rewiring."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.evidence import Part
from regrow.core.quantities import OfChunk, Rule, as_numbers, refuse_nan
from regrow.core.row import Chunk, check_finite, join
from regrow.core.selections import Kernels, Listed, k_smallest_each
from regrow.storage.packed.slot import Slot


@dataclass(frozen=True)
class ListedPart(Part):
    """A chunk of which only the active units are stored; all it has is in the order of `active`.

    `candidates`: the free places that may grow, ascending, how many of each layer, and their gradients: as many as can
    be wanted, and the best.
    """

    chunk: Chunk
    active: Listed
    counts: tuple[int, ...]
    kernels: Kernels
    stored: Callable[[str], Tensor]
    candidates: Callable[[], tuple[Tensor, Sequence[int], Tensor]]

    @property
    def places(self) -> Tensor:
        return self.active.positions

    def of_active(self, name: str) -> Tensor:
        flat = join([self.stored(name)])
        if flat.is_floating_point():
            check_finite(flat, self.chunk.layers, self.counts, f"{name}s")
        return flat

    def largest_free(self, counts: Sequence[int], score: Rule, among: Tensor | None) -> Tensor:
        if among is not None:
            raise ValueError("packed storage knows the gradients of the best free places only; use storage='dense'")
        places, room, gradient = self.candidates()
        units = OfChunk(self.chunk, {"gradient": gradient}.__getitem__, lambda: places)
        low = -as_numbers(score(units))
        refuse_nan(low, self.chunk, room)
        return places.index_select(0, k_smallest_each(low, room, counts))


def candidates(chunk: Chunk, slots: Sequence[Slot]) -> tuple[Tensor, Sequence[int], Tensor]:
    """What the last backward pass found; refused if its gradients were not finite."""
    best = [slot.search.result(slot.places) for slot in slots]
    extremes = torch.stack([found.extreme.double() for found in best])
    check_finite(extremes, chunk.layers, [1] * len(slots), "gradients")
    places = [found.places + offset for found, offset in zip(best, chunk.offsets, strict=False)]
    return torch.cat(places), [len(found.places) for found in best], torch.cat([found.gradients for found in best])
