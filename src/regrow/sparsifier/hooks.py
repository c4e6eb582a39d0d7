"""Riding on an optimizer's steps: closures, nested steps, skipped steps, captured steps."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from regrow.kernels.gpu import is_capturing


class StepHooks:
    """Calls `before` when the gradients of a step are there, and `after` a step that counts.

    A step does not count while a stream is captured, after which `captured` is called, nor when a GradScaler has a
    fused optimizer skip it, after which `skipped` is.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        before: Callable[[], None],
        after: Callable[[], None],
        captured: Callable[[], None],
        skipped: Callable[[], None],
    ) -> None:
        self.are_on = True
        self._optimizer = optimizer
        self._before, self._after, self._captured, self._skipped = before, after, captured, skipped
        self._step_frame: FrameType | None = None
        self._is_running = False
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Take the hooks off. Torch goes through them while they run, so from within they are only switched off."""
        self.are_on = False
        if not self._is_running:
            for handle in self._handles:
                handle.remove()

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        caller = sys._getframe(1)
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
            self._before()
            return loss

        if is_positional:
            return (args[0], masked_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": masked_closure}

    def _after_step(self, *_: Any) -> None:
        if not self.are_on or sys._getframe(1) is not self._step_frame:
            return
        self._step_frame = None
        act = self._captured if is_capturing() else self._skipped if self._is_skipped() else self._after
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
