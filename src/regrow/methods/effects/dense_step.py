"""Steps in which the optimizer trains every place: what lies outside the topology is 0 again afterwards."""

from collections.abc import Callable

from torch.optim import Optimizer

from regrow.methods.effects.effect import Effect, Weights, rewirable


class DenseStep(Effect):
    """Sets inactive weights to 0 after each step; a rewiring, `is_due`, looks at them first, and does it itself."""

    def __init__(self, is_due: Callable[[int], bool]) -> None:
        self._is_due = is_due

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)

    def after_step(self, step: int, is_replayed: bool) -> bool:
        if not self._is_due(step):
            self._rewirable.zero_inactive(self._optimizer)
        return False
