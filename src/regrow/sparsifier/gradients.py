"""What is done to the gradients of a step before the optimizer sees them."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from regrow.core.rules import nudge
from regrow.methods.method import Method
from regrow.sparsifier.hooks import is_capturing
from regrow.storage.base import RewirableStorage, Storage


class Gradients:
    """Keeps the dense ones for growth, masks them and adds the L1 term, each once however often it is asked."""

    def __init__(self, method: Method, storage: Storage, optimizer: Optimizer) -> None:
        self._method, self._storage, self._optimizer = method, storage, optimizer
        self._seen: dict[int, TensorWeakRef] = {}
        self._is_captured = False

    def prepare(self, step: int) -> None:
        """Make ready what a step's backward passes left so far."""
        needs_dense = self._needs_dense(step)
        fresh = self._fresh() if needs_dense or self._method.gradient_l1 else []
        if needs_dense:
            cast(RewirableStorage, self._storage).keep_gradients(fresh, self._scale())
        self._storage.mask_gradients()
        if fresh and self._method.gradient_l1:
            self._pull_to_zero(fresh)

    def forget(self) -> None:
        """The next gradients are new ones."""
        self._seen.clear()

    def drop(self) -> None:
        """What was kept for growth has served; but a captured graph goes on writing there."""
        self.forget()
        if self._method.gradient_memory is not None and not self._is_captured:
            cast(RewirableStorage, self._storage).companions.pop("gradient", None)

    def _needs_dense(self, step: int) -> bool:
        """Every step for a running mean, and in a captured graph, which cannot tell one step from another."""
        if self._method.gradient_memory is None:
            return False
        self._is_captured |= is_capturing()
        return self._method.gradient_memory > 0 or self._is_captured or self._method.is_due(step)

    def _fresh(self) -> list[int]:
        """Parameters with a gradient not seen since the last step.

        A gradient in another tensor than before is either a new one, because the last was thrown away (a step that a
        GradScaler skips runs no hooks), or the old one moved (clipped into a copy); that was masked already.
        """
        fresh = []
        for i, parameter in enumerate(self._storage.parameters):
            if parameter.grad is None:
                continue
            seen = self._seen.get(i)
            if seen is None or (seen() is not parameter.grad and not self._storage.is_masked(i)):
                fresh.append(i)
            self._seen[i] = TensorWeakRef(parameter.grad)
        return fresh

    def _scale(self) -> Tensor | None:
        """By what a fused optimizer will still have to divide the gradients."""
        return getattr(self._optimizer, "grad_scale", None)

    def _pull_to_zero(self, fresh: Sequence[int]) -> None:
        pairs = [(self._storage.parameters[i].grad, self._storage.weights[i]) for i in fresh]
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        nudge.pull_to_zero(gradients, [weight for _, weight in pairs], self._method.gradient_l1, self._scale())
