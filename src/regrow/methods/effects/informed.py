"""Second moments of grown weights that begin as large as those beside them are."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.selections import exact_means
from regrow.methods.effects.effect import Effect, Weights, rewirable
from regrow.methods.effects.moments import Moments


class InformedMoments(Effect):
    """After a rewiring the second moments that are still 0 are set to the mean of their layer's others.

    `of_groups`: the moments of each parameter group, by its number.
    """

    def __init__(self, of_groups: Mapping[int, Moments]) -> None:
        self._names = sorted({name for moments in of_groups.values() for name in moments.second})

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)

    def rewired(self, step: int) -> None:
        active = self._rewirable.split(self._rewirable.active)
        for name in self._names:
            layers = self._rewirable.split([self._moment(parameter, name) for parameter in self._rewirable.parameters])
            known = [layer[layer != 0] for layer in layers]
            means = exact_means(
                torch.cat([own.to(known[0].device, torch.float64) for own in known]), list(map(len, known))
            )
            for layer, own, mean in zip(layers, active, means, strict=True):
                if isfinite(mean):
                    layer.masked_fill_(own & (layer == 0), mean)

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        """It, or none of it where the parameter has not been trained yet."""
        found = self._optimizer.state.get(parameter, {}).get(name)
        return found if isinstance(found, Tensor) else torch.zeros_like(parameter)
