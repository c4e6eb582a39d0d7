"""Which units come: scores of free places, of which the largest come; and places to look at."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.evidence import Units
from regrow.core.quantities import Quantities
from regrow.core.row import Tally


def mean_gradient_magnitude(units: Quantities) -> Tensor:
    """Where the loss would fall most for a small change, by the running mean of its gradients (SNFS)."""
    return units.mean_gradient.abs()


def draw_places(counts: Sequence[int], tally: Tally, key: int) -> Units:
    """So many places of each layer, drawn one by one from all, active or not and perhaps again (GSE).

    They are the first ones of the layer's random sequence of places, of which `draw_free` takes those that are free.
    """
    starts = accumulate(tally.num_units, initial=0)
    layers = zip(random.keys(key, range(len(counts))), counts, tally.num_units, starts, strict=False)
    drawn = [
        random.bits(own, torch.arange(n, device="cpu")).remainder_(units) + start for own, n, units, start in layers
    ]
    return Units(torch.cat(drawn), list(counts))
