"""What is known of units, as flat tensors: what scores are made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from regrow.core.row import Chunk


class Quantities(ABC):
    """What is known of some units, as flat tensors in the order of `position`.

    Of a unit of several weights, weight and gradients are mean magnitudes.
    """

    @cached_property
    def weight(self) -> Tensor:
        return self.look_up("weight")

    @cached_property
    def gradient(self) -> Tensor:
        """Of the last step: unscaled, without L1; before clipping where `mask_gradients()` came first."""
        return self.look_up("gradient")

    @cached_property
    def mean_gradient(self) -> Tensor:
        """The running mean of the gradients, by the method's `gradient_decay`."""
        return self.look_up("mean_gradient")

    @cached_property
    def sign(self) -> Tensor:
        """The side of zero a weight belongs to: true for the positive one."""
        return self.look_up("sign")

    @cached_property
    def position(self) -> Tensor:
        """Where the units are in the row."""
        return self.look_up("position")

    @abstractmethod
    def look_up(self, name: str) -> Tensor: ...

    @abstractmethod
    def index(self, dim: int) -> Tensor:
        """Where the units lie along a dimension of their tensors, counted in units."""


class OfChunk(Quantities):
    """Those of some units of a chunk, or of all, at `places` in it; what a score is a function of."""

    def __init__(
        self, chunk: Chunk, look_up: Callable[[str], Tensor], places: Callable[[], Tensor] | None = None
    ) -> None:
        self._chunk, self._look_up = chunk, look_up
        self._shown: list[Tensor] = []
        self._places = places or (lambda: torch.arange(chunk.num_units, device=chunk.device))

    def look_up(self, name: str) -> Tensor:
        found = self._chunk.positions(self._places()) if name == "position" else self._look_up(name)
        self._shown.append(found)
        return found

    def index(self, dim: int) -> Tensor:
        places = self._places()
        layer_of = torch.searchsorted(self._chunk.ends, places, right=True)
        found = torch.empty_like(places)
        for i, layer in enumerate(self._chunk.layers):
            found[layer_of == i] = layer.index(places[layer_of == i] - self._chunk.offsets[i], dim)
        return found

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that was looked up here, which nobody may change."""
        return any(own.data_ptr() == tensor.data_ptr() for own in self._shown)


Rule = Callable[[OfChunk], Tensor]
"""A score as a function of a chunk's units: elementwise."""
Score = Tensor | Rule | None
"""Elementwise: a number for each active unit of the row, or a function of a chunk's units; None for magnitude."""


def magnitude(units: Quantities) -> Tensor:
    return units.weight.abs()


def as_numbers(scores: Tensor) -> Tensor:
    """Scores that compare exactly; whole numbers and flags are scores, too."""
    return scores if scores.is_floating_point() else scores.double()


def refuse_nan(scores: Tensor, chunk: Chunk, lengths: Sequence[int]) -> None:
    """Refuse scores that are no numbers, naming the layer; `lengths` says how many of them belong to each."""
    if bool(scores.isnan().any()):
        parts = zip(chunk.layers, torch.split(scores, list(lengths)), strict=True)
        name = next(layer.name for layer, own in parts if bool(own.isnan().any()))
        raise ValueError(f"cannot rewire: {name} has scores that are NaN; a score must be a number for every unit")


def largest_at_each_index(
    chunk: Chunk, units: OfChunk, scores: Tensor, floor: Mapping[int, int], last: bool = False
) -> Tensor:
    """Which of some units are among the largest of their layer at an index of a dimension.

    `floor` says for each dimension how many; of equal ones the first count, or the last. A layer without one
    of the dimensions, as a vector is, has no floor.
    """
    if last:
        by_score = len(scores) - 1 - scores.flip(0).neg().sort(stable=True).indices
    else:
        by_score = scores.neg().sort(stable=True).indices
    places = chunk.places(units.position)
    layer_of = torch.searchsorted(chunk.ends, places, right=True)
    has_floor = [len(layer.shape) > max(floor, default=0) for layer in chunk.layers]
    by_score = by_score[torch.tensor(has_floor, device=chunk.device)[layer_of[by_score]]]
    found = [by_score[:0]]
    for dim, count in floor.items():
        group = layer_of * (1 << 40) + _index(chunk, places, dim)
        order = by_score[group[by_score].sort(stable=True).indices]  # by group, and within it by score
        begins = torch.searchsorted(group[order], group[order])
        found.append(order[torch.arange(len(order), device=order.device) - begins < count])
    return torch.cat(found)


def _index(chunk: Chunk, places: Tensor, dim: int) -> Tensor:
    """Where places, which ascend, lie along a dimension; 0 in layers that have no such."""
    parts = zip(chunk.layers, torch.split(places, chunk.count_per_layer(places)), chunk.offsets, strict=False)
    return torch.cat(
        [
            layer.index(own - offset, dim) if dim < len(layer.shape) else torch.zeros_like(own)
            for layer, own, offset in parts
        ]
    )
