"""How many units each layer gets back, in whole numbers."""

from collections.abc import Sequence

import numpy as np

from regrow.core.apportion import apportion
from regrow.core.row import Tally


def by_survivors(tally: Tally) -> list[int]:
    """In proportion to the weights that survived (DSR): layers whose weights matter win, the others lose."""
    weights = [n * size for n, size in zip(tally.survivors, tally.unit_sizes, strict=True)]
    return apportion(weights, tally.open_weights, tally.free, tally.unit_sizes)


def by_merit(tally: Tally, merits: Sequence[float]) -> list[int]:
    """In proportion to a merit of each layer, such as its mean momentum (SNFS)."""
    return apportion(merits, tally.open_weights, tally.free, tally.unit_sizes)


def by_room(tally: Tally, key: int) -> list[int]:
    """As uniform draws over all free places of the network would fall (DeepR across layers)."""
    ends = np.cumsum(tally.free)
    places = np.random.default_rng(key).choice(ends[-1], sum(tally.pruned), replace=False, shuffle=False)
    layers = np.searchsorted(ends, places, side="right")
    return [int(n) for n in np.bincount(layers, minlength=len(ends))]
