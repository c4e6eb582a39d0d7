"""Riding on an optimizer's steps: closures, nested, skipped and captured steps; and what is done to gradients there."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef

from regrow.kernels.gpu import is_capturing
from regrow.methods.effects.effect import Effect
from regrow.methods.method import Method
from regrow.storage.base import Rewirable, Storage

EVERYWHERE = frozenset({"free_gradient", "sampled_gradient", "mean_gradient"})
"""Of what methods need, the gradients of places that are not active."""


class StepHooks:
    """Calls `before` when the gradients of a step are there, and `after` a step that counts.

    A step does not count while a stream is captured, after which `captured` is called, nor when a GradScaler has a
    fused optimizer skip it, after which `skipped` is. A compiler of the user's whole step traces none of that.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        before: Callable[..., None],
        after: Callable[..., None],
        captured: Callable[[], None],
        skipped: Callable[[], None],
    ) -> None:
        self.are_on = True
        self._optimizer = optimizer
        self._before, self._after = before, after
        self.before, self.after = _untraced(before), _untraced(after)  # for whoever calls them without the hooks
        self._captured, self._skipped = captured, skipped
        self._step_frame: FrameType | None = None
        self._is_running = False
        self._handles = [optimizer.register_step_pre_hook(_untraced(self._before_step))]
        try:
            self._handles.append(optimizer.register_step_post_hook(_untraced(self._after_step)))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take the hooks off. Torch goes through them while they run, so from within they are only switched off."""
        self.are_on = False
        if not self._is_running:
            for handle in self._handles:
                handle.remove()

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        caller = _calling_step(sys._getframe(1))
        if not self.are_on or self._is_inside_step(caller):
            return None
        self._step_frame = caller
        is_positional = len(args) > 1
        closure = args[1] if is_positional else kwargs.get("closure")
        if not callable(closure):
            if not self._is_skipped():
                self._before()
            return None

        def masked_closure() -> Any:
            loss = closure()
            self.before()
            return loss

        if is_positional:
            return (args[0], masked_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": masked_closure}

    def _after_step(self, *_: Any) -> None:
        if not self.are_on or _calling_step(sys._getframe(1)) is not self._step_frame:
            return
        self._step_frame = None
        is_recorded = torch.cuda.is_initialized() and is_capturing()  # type: ignore[no-untyped-call]
        act = self._captured if is_recorded else self._skipped if self._is_skipped() else self._after
        self._is_running = True
        try:
            act()
        finally:
            self._is_running = False

    def _is_inside_step(self, frame: FrameType | None) -> bool:
        """Torch hooks `step` once per class, so one that calls its parent's runs the hooks twice; the outer counts."""
        while frame is not None and self._step_frame is not None:
            if frame is self._step_frame:
                return True
            frame = frame.f_back
        return False

    def _is_skipped(self) -> bool:
        """Fused optimizers run their hooks also in a step that a GradScaler has them skip."""
        found_inf = getattr(self._optimizer, "found_inf", None)
        return found_inf is not None and bool(found_inf > 0)


def _untraced(act: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which a compiler calls as it is."""
    return torch.compiler.disable(act)  # type: ignore[no-untyped-call, no-any-return]


def _calling_step(frame: FrameType) -> FrameType:
    """The frame of the optimizer's step that called a hook, below what a compiler puts in between."""
    while _is_of_compiler(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_of_compiler(frame: FrameType) -> bool:
    """One that switches tracing off, or that goes on where a compiled step was interrupted."""
    is_own = str(frame.f_globals.get("__name__")).startswith("torch._dynamo.")
    return is_own or frame.f_code.co_name.startswith("torch_dynamo_resume_in_")


class EveryStep:
    """Calls `check` with any optimizer that is about to step, again only when it holds more or fewer parameters."""

    def __init__(self, check: Callable[[Optimizer], None]) -> None:
        self._check = check
        self._seen: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        """From now on, and anew for optimizers that were seen before."""
        self._seen.clear()
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(_untraced(self._look))

    def stop(self) -> None:
        """Leave the steps of others alone."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _look(self, optimizer: Optimizer, *_: Any) -> None:
        num_held = sum([len(group["params"]) for group in optimizer.param_groups])
        if self._seen.get(optimizer) != num_held:
            self._check(optimizer)
            self._seen[optimizer] = num_held


class Gradients:
    """Keeps what a rewiring needs, masks and shows effects what is left, each once however often it is asked."""

    def __init__(self, method: Method, effects: Sequence[Effect], storage: Storage, optimizer: Optimizer) -> None:
        self._method, self._effects, self._optimizer = method, effects, optimizer
        self._storage = storage
        self._rewirable = storage if isinstance(storage, Rewirable) else None
        self._kinds = method.needs & (EVERYWHERE | {"gradient"})
        if self._kinds & EVERYWHERE:
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
            self._rewirable.mask_gradients()
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
        if self._kinds and "mean_gradient" not in self._kinds and not self._are_kept:
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
            if seen is None or (seen() is not parameter.grad and not self._is_masked(i)):
                fresh.append(i)
            self._seen[i] = TensorWeakRef(parameter.grad)
        return fresh

    def _is_masked(self, i: int) -> bool:
        return self._rewirable is None or self._rewirable.is_masked(i)

    def _scale(self) -> Tensor | None:
        """By what a fused optimizer will still have to divide the gradients."""
        return getattr(self._optimizer, "grad_scale", None)
