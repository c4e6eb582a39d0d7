"""Growing by gradient where no dense gradient is kept: the best free places of a layer, found tile by tile."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.kernels.planes import Convolution
from regrow.row import Listed
from regrow.select import k_smallest, positions_of
from regrow.storage.packing import first_free
from regrow.storage.places import Places
from regrow.units import Layer

_TILE = 1 << 22


@dataclass(frozen=True)
class Best:
    """Free places of a layer, ascending, and their scores; `extreme` is finite if the whole gradient was."""

    places: Tensor
    scores: Tensor
    extreme: Tensor


def best_free(places: Places, gradients: Iterable[Tensor], count: int) -> Best:
    """The free places with the `count` largest gradients; among equal ones those that come first.

    `gradients` are consecutive parts of the layer's gradient, flat, in the order of its units.
    """
    active, _ = places.in_row_order()
    count = min(count, places.layer.num_units - len(active))
    found, lowness = active.new_empty(0), torch.empty(0, device=active.device)
    extreme = torch.zeros((), device=active.device)
    listed, begin = Listed(active), 0
    for tile in (tile for part in gradients for tile in torch.split(part, _TILE)):
        low = tile.abs().neg_()
        low = low if low.dtype == torch.float64 else low.float()
        extreme = torch.maximum(extreme, -low.amin())
        low = low.index_fill_(0, listed.within(begin, begin + len(tile)) - begin, torch.inf)
        new = _better(low, lowness, count)
        found = torch.cat([found, new + begin])
        lowness = torch.cat([lowness, low.index_select(0, new)])
        if len(found) > count:
            kept = k_smallest(lowness, count)
            found, lowness = found.index_select(0, kept), lowness.index_select(0, kept)
        begin += len(tile)
    return Best(found, -lowness, extreme)


def gradient_tiles(layer: Layer, x: Tensor, dy: Tensor, how: Convolution | None) -> Iterator[Tensor]:
    """The gradient of a layer's dense weight, some of its outputs at a time, flat in the order of its units."""
    num_rows = max(1, _TILE * layer.shape[0] // layer.num_weights)
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


def no_gradient(places: Places, count: int) -> Best:
    """What grows in a layer that took no part in a step: all gradients are 0, so the first free places."""
    active, _ = places.in_row_order()
    first = first_free(active, min(count, places.layer.num_units - len(active)))
    return Best(first, torch.zeros(len(first), device=first.device), torch.zeros((), device=first.device))


def _better(low: Tensor, so_far: Tensor, count: int) -> Tensor:
    """Entries that may be among the `count` lowest, given those found in earlier tiles."""
    if len(so_far) < count:
        free = int((low < torch.inf).count_nonzero())
        return k_smallest(low, min(count, free))
    return positions_of(low < so_far.amax())
