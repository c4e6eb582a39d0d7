"""A chunk of packed layers at the moment of a rewiring."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.evidence import Part
from regrow.core.quantities import OfChunk, Rule, as_numbers, refuse_nan
from regrow.core.row import Chunk, check_finite, join
from regrow.core.selections import Kernels, Listed, free_among, k_smallest_each
from regrow.storage.packed.slot import Slot


@dataclass(frozen=True)
class ListedPart(Part):
    """A chunk of which only the active units are stored; all it has is in the order of `active`.

    `candidates`: the free places that may grow, ascending, how many of each layer, and their gradients: as many as can
    be wanted, and the best; or, of a `sample`, those that are free.
    """

    chunk: Chunk
    active: Listed
    counts: tuple[int, ...]
    kernels: Kernels
    stored: Callable[[str], Tensor]
    candidates: Callable[[], tuple[Tensor, Sequence[int], Tensor]]
    is_sample: bool = False

    @property
    def places(self) -> Tensor:
        return self.active.positions

    def of_active(self, name: str) -> Tensor:
        flat = join([self.stored(name)])
        if flat.is_floating_point():
            check_finite(flat, self.chunk.layers, self.counts, f"{name}s")
        return flat

    def largest_free(self, counts: Sequence[int], score: Rule, among: Tensor | None) -> Tensor:
        places, room, gradient = self.candidates()
        if self.is_sample or among is not None:
            at = self._known(places, among)
            places, gradient = places.index_select(0, at), gradient.index_select(0, at)
            room = self.chunk.count_per_layer(places)
            counts = list(map(min, counts, room))
        units = OfChunk(self.chunk, {"gradient": gradient}.__getitem__, lambda: places)
        low = -as_numbers(score(units))
        refuse_nan(low, self.chunk, room)
        return places.index_select(0, k_smallest_each(low, room, counts))

    def _known(self, places: Tensor, among: Tensor | None) -> Tensor:
        """Where the free ones of some places are among those with a gradient."""
        if among is not None and torch.equal(among, places):
            return torch.arange(len(places), device=places.device)
        if among is not None:
            free = free_among(self.active, among)
            at = torch.searchsorted(places, free)
            if torch.equal(places.index_select(0, at.clamp_(max=len(places) - 1)), free):
                return at
        raise ValueError(
            "packed storage knows the gradients of those places alone that were named before the backward pass; give "
            "largest_free(among=...) what `candidates` gives, or use storage='dense'"
        )


def candidates(chunk: Chunk, slots: Sequence[Slot]) -> tuple[Tensor, Sequence[int], Tensor]:
    """What the last backward pass found; refused if its gradients were not finite."""
    best = [slot.search.result(slot.places) for slot in slots]
    extremes = torch.stack([found.extreme.double() for found in best])
    check_finite(extremes, chunk.layers, [1] * len(slots), "gradients")
    places = [found.places + offset for found, offset in zip(best, chunk.offsets, strict=False)]
    return torch.cat(places), [len(found.places) for found in best], torch.cat([found.gradients for found in best])
