"""The gradient of a layer's dense weight, in passing: whole where the layer is computed so, else as its factors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.kernels.cpu.functions import sparse_backward
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.packed.places import PatternPlaces, Places

TILE = 1 << 22


class Gradient(Protocol):
    """What a backward pass shows of the gradient of a weight that is not there."""

    def tiles(self) -> Iterator[Tensor]:
        """All of it, some at a time, flat in the order of the layer's units."""

    def at(self, places: Places) -> Tensor:
        """What it is at some places, and no more."""


@dataclass(frozen=True)
class Whole:
    """One that is there for a moment, because the layer was computed as a dense one."""

    layer: Layer
    dense: Tensor

    def tiles(self) -> Iterator[Tensor]:
        yield self.layer.flatten(self.dense)

    def at(self, places: Places) -> Tensor:
        return places.collect(self.dense)


@dataclass(frozen=True)
class Product:
    """One that nobody computes: the product of a layer's input and of the gradient of its output, on a CPU."""

    layer: Layer
    x: Tensor
    dy: Tensor
    how: Convolution | None

    def tiles(self) -> Iterator[Tensor]:
        return _tiles(self.layer, self.x, self.dy, self.how)

    def at(self, places: Places) -> Tensor:
        """As the gradient of the values is computed: by the same kernels, for other places."""
        assert isinstance(places, PatternPlaces)
        unread = self.x.new_empty(places.count)
        return sparse_backward(places.pattern, unread, self.x, self.dy, self.how, needs_input=False)[1]


def _tiles(layer: Layer, x: Tensor, dy: Tensor, how: Convolution | None) -> Iterator[Tensor]:
    """Some of a layer's outputs at a time."""
    num_rows = max(1, TILE * layer.shape[0] // layer.num_weights)
    if layer.unit_dims[0] != 0:
        num_rows = layer.shape[0]
    rows = [range(layer.shape[0])] if how is None else _outputs_of_groups(layer, how)
    for number, group in enumerate(rows):
        for begin in range(group.start, group.stop, num_rows):
            own = slice(begin, min(begin + num_rows, group.stop))
            tile = _linear_tile(x, dy, own) if how is None else _conv_tile(layer, x, dy, how, number, own)
            yield tile.permute(layer.unit_dims).reshape(-1)


def _outputs_of_groups(layer: Layer, how: Convolution) -> list[range]:
    each = layer.shape[0] // how.groups
    return [range(begin, begin + each) for begin in range(0, layer.shape[0], each)]


def _linear_tile(x: Tensor, dy: Tensor, rows: slice) -> Tensor:
    return dy.reshape(-1, dy.shape[-1])[:, rows].T @ x.reshape(-1, x.shape[-1])


def _conv_tile(layer: Layer, x: Tensor, dy: Tensor, how: Convolution, group: int, rows: slice) -> Tensor:
    num_inputs = layer.shape[1]
    inputs = x[:, group * num_inputs : (group + 1) * num_inputs]
    shaped = x.new_empty(rows.stop - rows.start, *layer.shape[1:])
    none, needed = (0,) * len(how.stride), (False, True, False)
    _, tile, _ = torch.ops.aten.convolution_backward(
        dy[:, rows], inputs, shaped, None, how.stride, how.padding, how.dilation, False, none, 1, needed
    )
    gradient: Tensor = tile
    return gradient
