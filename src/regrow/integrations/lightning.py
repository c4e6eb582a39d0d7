"""Sparse training in Lightning: a callback for its Trainer."""

from typing import Any

from torch.optim import Optimizer

from regrow.core.extras import check_installed
from regrow.integrations.training import SparseTraining
from regrow.methods.method import Method
from regrow.sparsifier.sparsifier import Sparsifier

check_installed("lightning", "the callback for Lightning's Trainer", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class Sparsify(SparseTraining, Callback):
    """Keeps a module sparse while a Trainer fits it; checkpoints resume, clipping sees masked gradients.

    - `method`: a method, e.g. `regrow.DSR(sparsity=0.9)`; or a sparsifier, if you attached before, as packed storage
      must be, to the optimizer that `configure_optimizers` returns.
    - `optimizer`: which one, where `configure_optimizers` returns several.
    - `attach_options`: those of `regrow.attach`.
    """

    def __init__(self, method: Method | Sparsifier, *, optimizer: int = 0, **attach_options: Any) -> None:
        super().__init__(method, attach_options)
        self._optimizer = optimizer
        self._restored: tuple[LightningModule, dict[str, Any] | None] | None = None
        self._logged = -1

    @property
    def state_key(self) -> str:
        """Callbacks for several optimizers each have a state."""
        return f"Sparsify(optimizer={self._optimizer})"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Be asked first: a finder of learning rates trains when it is asked, and is to train the sparse network."""
        trainer.callbacks = [self, *(other for other in trainer.callbacks if other is not self)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach: weights are restored, the optimizer is there, its state is restored next."""
        if not 0 <= self._optimizer < len(trainer.optimizers):
            raise ValueError(f"there is no optimizer {self._optimizer}: the module has {len(trainer.optimizers)}")
        state = self._state_for(pl_module)
        if trainer.ckpt_path and state is None and self._starts_at_random:
            raise ValueError(
                f"{trainer.ckpt_path} has trained weights and no state of a sparsifier; resume from one that was saved "
                "with this callback, or pass start='magnitude'"
            )
        self._begin(pl_module, trainer.optimizers[self._optimizer], state)
        self._restored = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Weights were restored; what is theirs of the sparsifier is taken over when training or testing begins."""
        self._restored = pl_module, checkpoint["callbacks"].get(self.state_key)

    def state_dict(self) -> dict[str, Any]:
        """What the Trainer puts in a checkpoint."""
        return {} if self.sparse is None else self.sparse.state_dict()

    def _state_for(self, module: LightningModule) -> dict[str, Any] | None:
        return self._restored[1] if self._restored is not None and self._restored[0] is module else None

    def _follow(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Weights were restored while a sparsifier rides: by a finder, or to test the best of them."""
        state = self._state_for(pl_module)
        if state is not None and self.sparse is not None and self._trains(pl_module):
            self.sparse.load_state_dict(state)
            self._restored = None

    on_train_start = on_validation_start = on_test_start = on_predict_start = _follow

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Gradients are complete, and clipped next."""
        if self.sparse is not None and self.sparse.optimizer is optimizer:
            self.sparse.mask_gradients()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Log as often as the Trainer does, in all its loggers."""
        step, every = trainer.global_step, trainer.log_every_n_steps
        if every and step % every == 0 and step != self._logged:
            self._logged = step
            for logger in trainer.loggers:
                logger.log_metrics(self._metrics(), step=step)
