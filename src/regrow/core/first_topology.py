"""The first topology: drawn at random, or the largest weights of a trained model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Chunk
from regrow.core.selections import Listed, ascending, draw_free, k_smallest_each


def random_places(chunk: Chunk, counts: Sequence[int], seed: int) -> Tensor:
    """`counts` units of each layer, uniform, as ascending positions; the draw of step 0."""
    nothing = Listed(torch.empty(0, dtype=torch.int64, device=chunk.device))
    return ascending(draw_free(chunk, counts, chunk.sizes, nothing, random.key(seed, 0), {}))


def largest_places(chunk: Chunk, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """The `counts` largest units of each layer, ascending."""
    magnitude = chunk.flatten(weights).abs()
    check_start(magnitude, chunk)
    return k_smallest_each(-magnitude, chunk.sizes, counts)


def check_start(magnitude: Tensor, chunk: Chunk) -> None:
    """Refuse weights that cannot be compared, naming the layer."""
    for layer, part in zip(chunk.layers, chunk.split(magnitude), strict=True):
        if not bool(part.isfinite().all()):
            raise ValueError(f"cannot start by magnitude: {layer.name} has weights that are NaN or infinite")
