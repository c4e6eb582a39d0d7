"""Growing by gradient where no dense gradient is kept: the best free places of a layer, found tile by tile."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.selections import Listed, k_smallest, positions_of
from regrow.core.units import wide
from regrow.storage.packed.gradients import TILE, Gradient
from regrow.storage.packed.places import Places
from regrow.storage.packed.renumber import first_free

Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Best:
    """Free places of a layer, ascending, and their gradients; `extreme` is finite if those of all places are."""

    places: Tensor
    gradients: Tensor
    extreme: Tensor


def check_sees_all_gradients() -> None:
    """Refuse to grow by gradients of which every process would see its own only, before they are summed."""
    is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_shared and torch.distributed.get_world_size() > 1:
        raise ValueError(
            "packed storage cannot grow by the gradients of several processes; use storage='dense', or regrow.GSE, "
            "which goes by those of a sample"
        )


def best_free(places: Places, gradients: Iterable[Tensor], count: int, score: Score) -> Best:
    """The free places with the `count` largest scores; among equal ones those that come first.

    `gradients` are consecutive parts of the layer's gradient, flat, in the order of its units.
    """
    active, _ = places.by_unit()
    count = min(count, places.layer.num_units - len(active))
    listed, begin, extremes = Listed(active), 0, []
    lowest = _Lowest(count)
    for tile in (wide(tile) for part in gradients for tile in torch.split(part, TILE)):
        extremes.append(torch.stack(tile.aminmax()).abs().amax())
        scores = score(tile)
        low = scores.neg() if scores.data_ptr() == tile.data_ptr() else scores.neg_()
        low.index_fill_(0, listed.within(begin, begin + len(tile)) - begin, torch.inf)
        lowest.look_at(low, tile, begin)
        begin += len(tile)
    found, _, of_found = lowest.result()
    return Best(found, of_found, torch.stack(extremes).amax())


@dataclass
class Search:
    """One layer's search for `wanted` free places, in the backward pass of a step that grows by gradient.

    A layer that is used several times in a forward pass gets its gradient in as many parts, that of its first use last.
    They are added up until then. What is found in a later backward pass counts instead of what was found before.
    """

    wanted: int = 0
    score: Score = torch.abs
    num_uses: int = 0
    _part: Tensor | None = None
    _found: Best | None = None

    def look(self, places: Places, gradient: Gradient, use: int) -> None:
        """Look at the gradient of a use, the first being number 1."""
        gradients = gradient.tiles() if self._part is None else _add(gradient.tiles(), self._part)
        if use > 1:
            self._part = torch.cat(list(gradients))
        else:
            self._found = best_free(places, gradients, self.wanted, self.score)
            self._part = None
        self.num_uses = use - 1

    def result(self, places: Places) -> Best:
        if self._part is not None:  # the first use had no part in the loss
            return best_free(places, [self._part], self.wanted, self.score)
        return self._found or no_gradient(places, self.wanted)


def _add(parts: Iterable[Tensor], whole: Tensor) -> Iterator[Tensor]:
    begin = 0
    for part in parts:
        yield part + whole[begin : begin + len(part)]
        begin += len(part)


class _Lowest:
    """The `count` lowest numbers of tiles that come one after another; among equal ones those that come first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bound: float | Tensor = torch.inf
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []
        self._num_found = 0

    def look_at(self, numbers: Tensor, gradients: Tensor, begin: int) -> None:
        """Numbers of a tile, and the gradients they are made of."""
        places = positions_of(numbers < self._bound)
        self._found.append((places + begin, numbers.index_select(0, places), gradients.index_select(0, places)))
        self._num_found += len(places)
        if self._num_found > 2 * self._count:  # not every time, since few tiles change much
            kept = self.result()
            self._found, self._num_found, self._bound = [kept], len(kept[0]), kept[1].amax()

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Their places, they themselves, and their gradients."""
        places, numbers, gradients = (torch.cat(parts) for parts in zip(*self._found, strict=True))
        kept = k_smallest(numbers, min(self._count, len(numbers)))
        return places.index_select(0, kept), numbers.index_select(0, kept), gradients.index_select(0, kept)


def no_gradient(places: Places, count: int) -> Best:
    """What grows in a layer that took no part in a step: all gradients are 0, so the first free places."""
    active, _ = places.by_unit()
    first = first_free(active, min(count, places.layer.num_units - len(active)))
    return Best(first, torch.zeros(len(first), device=first.device), torch.zeros((), device=first.device))
