"""Where packed values belong: pure functions on lists of positions.

The values of a layer are stored in *column order*: the weight [O, I, ...] seen as a matrix of O rows, they ascend by
column and within a column by row. So their places, numbered along the dimensions (1, 2, ..., 0), ascend.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from regrow.core.selections import ascending, positions_of
from regrow.core.units import Layer


def column_order(layer: Layer) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest along which stored places ascend."""
    return (*range(1, len(layer.shape)), 0)


def logical_order(layer: Layer) -> tuple[int, ...]:
    """The dimensions in the order of the tensor's own indices."""
    return tuple(range(len(layer.shape)))


def renumber(places: Tensor, shape: Sequence[int], old: Sequence[int], new: Sequence[int]) -> Tensor:
    """The same places of a tensor, numbered along its dimensions in another order.

    >>> renumber(torch.tensor([0, 1, 2, 3, 4, 5]), (2, 3), (0, 1), (1, 0)).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    if tuple(old) == tuple(new):
        return places
    runs = _common_runs(old, new)
    index: dict[tuple[int, ...], Tensor] = {}
    for run in reversed(runs):
        size = prod(shape[dim] for dim in run)
        index[run] = places % size
        places = places // size
    made = torch.zeros_like(places)
    for run in sorted(runs, key=lambda run: new.index(run[0])):
        made = made * prod(shape[dim] for dim in run) + index[run]
    return made


def _common_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, ...]]:
    """The old order cut where the new one does not go on in the same way: dimensions that can be counted as one."""
    cuts = [i for i, (one, next_) in enumerate(pairwise(old), 1) if new.index(next_) != new.index(one) + 1]
    return [tuple(old[begin:end]) for begin, end in pairwise([0, *cuts, len(old)])]


def index_dtype(layer: Layer) -> torch.dtype:
    """What numbers the places of a layer in the fewest bytes."""
    return torch.int32 if layer.num_units <= 1 << 31 else torch.int64


def exchange(stored: Tensor, gone: Tensor, come: Tensor) -> tuple[Tensor, Tensor]:
    """Stored places, ascending, after some have gone and others have come; and where each was before, -1 for the new.

    >>> exchange(torch.tensor([2, 4, 7]), torch.tensor([4]), torch.tensor([9, 3]))
    (tensor([2, 3, 7, 9]), tensor([ 0, -1,  2, -1]))
    """
    stays = torch.ones_like(stored, dtype=torch.bool)
    stays[torch.searchsorted(stored, ascending(gone))] = False  # in order, or the search would miss the cache
    survivors = positions_of(stays)
    kept, come = stored.index_select(0, survivors), ascending(come)
    arrivals = torch.searchsorted(kept, come) + torch.arange(len(come), device=come.device)
    is_new = torch.zeros(len(kept) + len(come), dtype=torch.bool, device=stored.device).index_fill_(0, arrivals, True)
    places = stored.new_empty(len(is_new)).masked_scatter_(is_new, come)
    places.masked_scatter_(~is_new, kept)
    return places, torch.full_like(places, -1).masked_scatter_(~is_new, survivors)


def move(tensor: Tensor, source: Tensor) -> None:
    """Let each entry be the one that was at its source before, 0 where the source is -1; in place."""
    moved = tensor.index_select(0, source.clamp(min=0))
    tensor.copy_(moved.masked_fill_(source < 0, 0))


def first_free(active: Tensor, count: int) -> Tensor:
    """The first places that are not among the active ones, which ascend.

    >>> first_free(torch.tensor([0, 2, 3]), 3).tolist()
    [1, 4, 5]
    """
    free_before = active - torch.arange(len(active), device=active.device)
    which = torch.arange(count, device=active.device)
    return which + torch.searchsorted(free_before, which, right=True)
