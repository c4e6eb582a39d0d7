"""Growing among candidates that were named before the backward pass: the gradient is looked at there and nowhere else.

What a backward pass sees counts once the pass has come to the values, and is added to what others have seen, as their
gradient is. A pass that never comes there, because it is for the gradient of an input, leaves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from regrow.core.selections import Listed, free_among, which_are_free
from regrow.core.units import Layer
from regrow.kernels.gpu import is_capturing
from regrow.storage.packed.gradients import Gradient
from regrow.storage.packed.growth import Best, no_gradient
from regrow.storage.packed.places import Places, has_kernels, overwrite, places_of_ascending, places_of_units
from regrow.storage.packed.renumber import logical_order


class Sample:
    """The candidates of a pack's layers in the coming step, and the gradient there.

    A captured step looks every time, since it cannot tell one from another. So on a GPU places stay in the same memory
    as long as they are as many.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._is_wanted = self._is_captured = False
        self._hold([])
        self.rest()

    def _hold(self, places: Sequence[Places]) -> None:
        self.places = list(places)
        self.starts = list(accumulate((own.count for own in self.places), initial=0))

    def take(self, places: Sequence[Places]) -> None:
        """Look at these in the coming step."""
        self.rest()
        kept = [overwrite(old, new) for old, new in zip(self.places, places, strict=True)] if self.places else places
        if self._is_captured and any(old is not new for old, new in zip(self.places, kept, strict=True)):
            raise ValueError(
                "a captured step looks at as many candidates as when it was captured, and there are more or fewer now; "
                "capture it again"
            )
        self._hold(kept)
        self._is_wanted = True

    def rest(self) -> None:
        """Look at nothing, unless a captured step does, and forget what was seen."""
        self._is_wanted = False
        self._begun: int | None = None  # the pass that began the gradient of the values
        self._passing: dict[int, list[tuple[int, Tensor]]] = {}
        if not self._is_captured:
            self._seen: Tensor | None = None
        if self.places and has_kernels(self.places[0].device):
            self._hold([])

    def to(self, device: torch.device) -> None:
        self._hold([own.to(device) for own in self.places])
        self._seen = None

    @property
    def is_looking(self) -> bool:
        return bool(self.places) and (self._is_wanted or is_capturing())

    @property
    def seen(self) -> Tensor:
        """The gradient of the step so far, of one layer after the other."""
        if self._seen is None:
            device = self.places[0].device if self.places else None
            self._seen = torch.zeros(self.starts[-1], dtype=self._dtype, device=device)
        return self._seen

    def of_layer(self, number: int) -> Tensor:
        return self.seen[self.starts[number] : self.starts[number + 1]]

    def look(self, number: int, gradient: Gradient) -> None:
        """A backward pass comes to a layer."""
        self._is_captured |= is_capturing()
        found = number, gradient.at(self.places[number])
        self._passing.setdefault(_this_pass(), []).append(found)

    def settle(self, before: Tensor | None) -> None:
        """A backward pass has come to the values, whose gradient was `before` until now."""
        if not self.is_looking:
            return
        this = _this_pass()
        if self._begun is None or (self._begun != this and _is_nothing(before)):
            self._begun = this
            self.seen.zero_()
        for number, gradient in self._passing.pop(this, ()):
            self.of_layer(number).add_(gradient)


def _this_pass() -> int:
    """A number of its own for each backward pass, also for those inside another, as checkpointing makes them."""
    return torch._C._current_graph_task_id()


def _is_nothing(gradient: Tensor | None) -> bool:
    """Whether there is none, or what is left of one that was set to 0."""
    return gradient is None or not (is_capturing() or bool(gradient.any()))


@dataclass
class Share:
    """One layer's part of a sample: what a `Search` is to a layer that looks among all its free places."""

    sample: Sample
    number: int
    num_uses: int = 0

    @property
    def wanted(self) -> int:
        return self.sample.places[self.number].count if self.sample.is_looking else 0

    def look(self, _: Places, gradient: Gradient, use: int) -> None:
        """Look at the gradient of a use, whichever; they are added up."""
        self.sample.look(self.number, gradient)
        self.num_uses = use - 1

    def result(self, places: Places) -> Best:
        """The free ones among the candidates."""
        if not self.wanted:
            return no_gradient(places, 0)
        units, order = self.sample.places[self.number].by_unit()
        free = which_are_free(Listed(places.by_unit()[0]), units)
        gradients = self.sample.of_layer(self.number).index_select(0, order.index_select(0, free))
        return Best(units.index_select(0, free), gradients, torch.cat([gradients, gradients.new_zeros(1)]).abs().amax())


def places_of_candidates(layer: Layer, units: Tensor) -> Places:
    """On a CPU each once, as kernels want them; on a GPU as many as were named, so that a captured graph fits all."""
    if not has_kernels(units.device):
        return places_of_units(layer, units)[0]
    units = free_among(Listed(units[:0]), units)
    is_ascending = layer.unit_dims == logical_order(layer)
    return (places_of_ascending if is_ascending else places_of_units)(layer, units)[0]
