"""Sparse training in the Trainer of Hugging Face: a callback."""

import sys
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from regrow.core.extras import check_installed
from regrow.integrations.training import SparseTraining
from regrow.methods.method import Method
from regrow.sparsifier.sparsifier import Sparsifier

check_installed("transformers", "the callback for the Trainer of Hugging Face", "transformers", "accelerate")

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402

_KEY, _STEP = "regrow", "regrow: step"
"""Where the state and its step are among the states of a saved optimizer; torch restores keys that it does not know."""


class Sparsify(SparseTraining, TrainerCallback):
    """Keeps a model sparse while a Trainer trains it; checkpoints resume, clipping sees masked gradients.

    - `method`: a method, e.g. `regrow.DSR(sparsity=0.9)`; or a sparsifier, if you attached before, as packed storage
      must be, to the optimizer that you pass to the Trainer.
    - `attach_options`: those of `regrow.attach`.

    The sparsifier's state is in the checkpoint's `optimizer.pt`, since a callback is not told where a checkpoint is.
    """

    def __init__(self, method: Method | Sparsifier, **attach_options: Any) -> None:
        super().__init__(method, attach_options)
        self._saves_with: Any = None
        self._max_norm, self._norm = 0.0, torch.zeros(())
        self._progress: TrainerState | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **_: Any,
    ) -> None:
        """Attach: weights and the optimizer's state are restored, if they are at all."""
        handler = sys._getframe(1).f_locals.get("self")
        _check_alone(handler)
        saved, step = (optimizer.state.pop(key, None) for key in (_KEY, _STEP))  # type: ignore[call-overload]
        if saved is not None and step != state.global_step:
            raise ValueError(
                f"the checkpoint is of step {state.global_step} and its state of a sparsifier of step {step}, since it "
                "was trained on without this callback; resume from one that was saved with it"
            )
        if state.global_step and saved is None and self._starts_at_random:
            raise ValueError(
                "the checkpoint has trained weights and no state of a sparsifier; resume from one that was saved with "
                "this callback and without save_only_model, or pass start='magnitude'"
            )
        self._begin(model, optimizer, saved)
        assert self.sparse is not None
        if self._saves_with is not None:
            self._saves_with.remove()
        self._saves_with, self._progress = self.sparse.optimizer.register_state_dict_post_hook(self._add_state), state
        _ask_first(self, handler)

    def _add_state(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        assert self.sparse is not None
        assert self._progress is not None
        state_dict["state"] |= {_KEY: self.sparse.state_dict(), _STEP: self._progress.global_step}

    def on_step_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """The Trainer would clip before anybody is asked again, by the norm of all gradients: let it clip nothing.

        It still unscales them, which it would not do without a norm.
        """
        if args.max_grad_norm and args.max_grad_norm != inf:  # which it still is if the last step was interrupted
            self._max_norm, args.max_grad_norm = args.max_grad_norm, inf

    def on_pre_optimizer_step(self, args: TrainingArguments, *_: Any, model: nn.Module, **__: Any) -> None:
        """Gradients are complete: mask them, and clip by their norm instead of the Trainer."""
        assert self.sparse is not None
        self.sparse.mask_gradients()
        self._norm = clip_grad_norm_(model.parameters(), self._max_norm or inf)
        if self._max_norm:
            args.max_grad_norm, self._max_norm = self._max_norm, 0.0

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, logs: dict[str, Any], **_: Any
    ) -> None:
        """Add to what is logged of training, for all reporters."""
        if "loss" in logs:
            more = self._metrics() | {"grad_norm": self._norm.item()}
            logs.update(more)
            state.log_history[-1].update(more)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Follow the weights where the best ones were loaded."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None and not args.save_only_model:
            assert self.sparse is not None
            saved = torch.load(
                Path(state.best_model_checkpoint) / "optimizer.pt", map_location="cpu", weights_only=True
            )
            if _KEY in saved["state"]:
                self.sparse.load_state_dict(saved["state"][_KEY])


def _check_alone(handler: Any) -> None:
    """A second one would mask after the first has clipped, and save its state in the same place."""
    if sum(isinstance(callback, Sparsify) for callback in getattr(handler, "callbacks", ())) > 1:
        raise ValueError("a Trainer takes one Sparsify; give one method all layers, or attach to each part yourself")


def _ask_first(callback: Sparsify, handler: Any) -> None:
    """Reporters take what is in `logs` when they are asked, and a Trainer asks its own before those it was given."""
    if callback in getattr(handler, "callbacks", ()):
        handler.callbacks.remove(callback)
        handler.callbacks.insert(0, callback)
