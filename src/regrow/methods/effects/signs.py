"""A fixed sign for every place, for methods that need "sign"."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.quantities import Quantities
from regrow.kernels.gpu import is_capturing
from regrow.methods.effects.effect import Effect, Weights, rewirable


class Signs(Effect):
    """Every weight keeps the sign that it begins with; a place where none is, or is any more, gets one at random."""

    _has_begun = False

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)
        self._rewirable.lay_beside("sign", torch.bool, self._coins)
        self.renew()

    def before_step(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        if not self._has_begun and not is_capturing():  # weights may have been set since the network was attached to
            self.renew()
            self._has_begun = True

    def renew(self) -> None:
        """Every weight gets the sign it has; where it is 0, and elsewhere, one at random."""
        self._rewirable.fill_beside("sign", self._sign)
        self._has_begun = False

    def restart(self, step: int, seed: int) -> None:
        super().restart(step, seed)
        self._has_begun = True

    def _sign(self, units: Quantities) -> Tensor:
        return torch.where(units.weight != 0, units.weight > 0, self._coins(units.position))

    def _coins(self, positions: Tensor) -> Tensor:
        return random.coins(self._seed, positions)
