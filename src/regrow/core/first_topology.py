"""The first topology: drawn at random, or the largest weights of a trained model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Active, Chunk, Listed
from regrow.core.rules.grow import at_random
from regrow.core.rules.prune import smallest
from regrow.core.selections import ascending


def random_topology(chunk: Chunk, counts: Sequence[int], seed: int) -> Tensor:
    """`counts` units of each layer, uniform; the draw of step 0."""
    active = torch.zeros(chunk.num_units, dtype=torch.bool, device=chunk.device)
    active[_draw(chunk, counts, active, seed)] = True
    return active


def random_places(chunk: Chunk, counts: Sequence[int], seed: int) -> Tensor:
    """The same topology as ascending positions, without a flag for every place."""
    nothing = torch.empty(0, dtype=torch.int64, device=chunk.device)
    return ascending(_draw(chunk, counts, Listed(nothing), seed))


def _draw(chunk: Chunk, counts: Sequence[int], active: Active, seed: int) -> Tensor:
    return at_random(chunk, counts, [layer.num_units for layer in chunk.layers], active, random.key(seed, 0))


def largest_units(chunk: Chunk, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """The `counts` largest units of each layer."""
    magnitude = chunk.flatten(weights).abs()
    for layer, part in zip(chunk.layers, chunk.split(magnitude), strict=True):
        if not bool(part.isfinite().all()):
            raise ValueError(f"cannot start by magnitude: {layer.name} has weights that are NaN or infinite")
    return smallest(-magnitude, [layer.num_units for layer in chunk.layers], counts)
