"""A running mean of the dense gradients (SNFS's momentum), for methods that need "mean_gradient"."""

import torch
from torch.optim import Optimizer

from regrow.methods.effects.effect import Effect, Weights, rewirable


class MeanGradient(Effect):
    """Keeps `decay` of the mean in each step, and takes the rest from the gradient of that step."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)
        self._rewirable.lay_beside("mean_gradient", None, None)

    def after_step(self, step: int, is_replayed: bool) -> bool:
        gradients = self._rewirable.gradients()
        if gradients is not None:
            mean = list(self._rewirable.beside("mean_gradient"))
            torch._foreach_mul_(mean, self.decay)
            torch._foreach_add_(mean, list(gradients), alpha=1 - self.decay)
        return False
