"""What is done to the gradients of a step before the optimizer sees them."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from regrow.kernels.gpu import is_capturing
from regrow.methods.effects.effect import Effect
from regrow.methods.method import Method
from regrow.storage.base import Rewirable, Storage

_EVERYWHERE = frozenset({"free_gradient", "sampled_gradient", "mean_gradient"})


class Gradients:
    """Keeps what a rewiring needs of them, masks them and shows them to effects, each once however often it is asked."""

    def __init__(self, method: Method, effects: Sequence[Effect], storage: Storage, optimizer: Optimizer) -> None:
        self._method, self._effects, self._optimizer = method, effects, optimizer
        self._storage = storage
        self._rewirable = storage if isinstance(storage, Rewirable) else None
        self._kinds = method.needs & (_EVERYWHERE | {"gradient"})
        if self._kinds & _EVERYWHERE:
            self._kinds |= {"free_gradient"}
        self._seen: dict[int, TensorWeakRef] = {}
        self._are_kept = self._is_captured = False

    def prepare(self, step: int) -> None:
        """Make ready what a step's backward passes left so far."""
        keeps = self._keeps(step)
        fresh = self._fresh() if keeps or self._effects else []
        if self._rewirable is not None:
            if keeps:
                self._rewirable.keep_gradients(self._kinds, fresh, self._scale())
                self._are_kept = True
            self._rewirable.prepare_step()
        for effect in self._effects:
            effect.before_step(fresh, self._scale())

    def forget(self) -> None:
        """The next gradients are new ones."""
        self._seen.clear()

    def drop(self) -> None:
        """What was kept has served; but a captured graph goes on writing there."""
        self.forget()
        if self._rewirable is not None and self._are_kept and not self._is_captured:
            self._rewirable.drop_gradients()
            self._are_kept = False

    def check_kept(self, step: int) -> None:
        """Refuse to rewire by gradients that nobody kept."""
        if self._kinds and not self._are_kept:
            raise RuntimeError(
                f"{type(self._method).__name__} goes by the gradient of step {step}, which nobody kept; call "
                "mask_gradients() before the optimizer's step"
            )

    def _keeps(self, step: int) -> bool:
        """Every step for a running mean, and in a captured graph, which cannot tell one step from another."""
        if not self._kinds:
            return False
        if is_capturing():
            self._is_captured = True
            self._kinds |= {"free_gradient"}  # where active weights are will change, and the graph with it cannot
        return "mean_gradient" in self._kinds or self._is_captured or self._method.is_due(step)

    def _fresh(self) -> list[int]:
        """Parameters with a gradient not seen since the last step.

        A gradient in another tensor than before is either a new one, because the last was thrown away (a step that a
        GradScaler skips runs no hooks), or the old one moved (clipped into a copy); that was made ready already.
        """
        fresh = []
        for i, parameter in enumerate(self._storage.parameters):
            if parameter.grad is None:
                continue
            seen = self._seen.get(i)
            if seen is None or (seen() is not parameter.grad and not self._is_prepared(i)):
                fresh.append(i)
            self._seen[i] = TensorWeakRef(parameter.grad)
        return fresh

    def _is_prepared(self, i: int) -> bool:
        return self._rewirable is None or self._rewirable.is_prepared(i)

    def _scale(self) -> Tensor | None:
        """By what a fused optimizer will still have to divide the gradients."""
        return getattr(self._optimizer, "grad_scale", None)
