"""L1 regularisation: a pull of active weights towards 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regrow.distributed.dtensor import gradient_here, local
from regrow.methods.effects.effect import Effect


class L1(Effect):
    """Adds strength * sign(w) to each new gradient, once."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def before_step(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        given = [(self._weights.parameters[i], self._weights.weights[i]) for i in fresh]
        pairs = [(gradient_here(parameter), weight) for parameter, weight in given if parameter.grad is not None]
        if pairs:
            gradients, weights = zip(*pairs, strict=True)
            pull_to_zero(gradients, weights, self.strength, scale if scale is None else local(scale))


def pull_to_zero(gradients: Sequence[Tensor], weights: Sequence[Tensor], strength: float, scale: Tensor | None) -> None:
    """Add strength * sign(w) to the gradients, in place. Inactive weights are 0 and stay alone.

    `scale`: what the gradients were multiplied by and will be divided by again (loss scaling).
    """
    signs = torch._foreach_sign(list(weights))
    if scale is not None:
        signs = torch._foreach_mul(signs, scale)
    torch._foreach_add_(list(gradients), signs, alpha=strength)
