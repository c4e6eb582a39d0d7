"""A small network in Lightning's Trainer."""

import logging
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import regrow
from regrow.integrations.lightning import Sparsify

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CASES = {
    "accumulates and clips": (
        regrow.DSR(sparsity=0.8, period=4, l1=1e-4),
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    ),
    "bf16 autocast": (
        regrow.RigL(sparsity=0.8, period=4, until=12),
        {"precision": "bf16-mixed", "gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "all of it": (
        regrow.MEST(sparsity=0.8, period=4, until=12),
        {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    ),
    "bf16": (regrow.SET(sparsity=0.8, period=4), {"precision": "bf16-true"}),
    "packed": (regrow.DSR(sparsity=0.8, period=4), {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
}
STEPS, SAVED_AT = 16, 6
RANKS = {"strategy": "ddp", "devices": 2}
"""What a trainer of two ranks is told."""


class Classifier(L.LightningModule):
    """What a user writes; it knows nothing of regrow."""

    def __init__(self, optimizer=torch.optim.AdamW, rate=1e-2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer, self.rate = optimizer, rate

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x.to(self.dtype)), y)
        self.log("loss", loss)
        return loss

    validation_step = test_step = training_step

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=self.rate)


class Packed(Classifier):
    """Builds its optimizer itself, and is packed before Lightning restores and wraps it."""

    def __init__(self, method=CASES["packed"][0], seed=0):
        super().__init__()
        self.built = super().configure_optimizers()
        self.sparse = regrow.attach(self, self.built, method, storage=regrow.Packed(kernels="dense"), seed=seed)

    def configure_optimizers(self):
        return self.built


def batches(size=8):
    x = torch.randn(48, 12, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=size)


def trainer(folder, *callbacks, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    callbacks = list(callbacks)
    if "enable_checkpointing" not in options:
        options["enable_checkpointing"] = any(isinstance(own, ModelCheckpoint) for own in callbacks)
    return L.Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=callbacks, **{"max_steps": STEPS, **quiet, **options}
    )


def state_of(module, callback):
    return {
        "model": module.state_dict(),
        "masks": callback.sparse.masks(),
        "optimizer": callback.sparse.optimizer.state_dict(),
        "rewirings": len(callback.sparse.history),
    }


def fit(name, folder: Path, resume=False, **options):
    """Train a case to its end, from the beginning or from the checkpoint that another training left."""
    (method, more), seed = CASES[name], 5 if resume else 0
    module = Packed(method, seed) if name == "packed" else Classifier()
    callback = Sparsify(module.sparse) if name == "packed" else Sparsify(method, seed=seed)
    own = folder / name.replace(" ", "-")
    saves = [] if resume else [ModelCheckpoint(own, every_n_train_steps=SAVED_AT, save_top_k=-1, filename="saved")]
    path = own / "saved.ckpt" if resume else None
    trainer(folder, callback, *saves, **more, **options).fit(module, batches(), ckpt_path=path)
    return state_of(module, callback)


class PacksTooLate(Classifier):
    """Lightning has wrapped the module when it asks for optimizers."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        regrow.attach(self, optimizer, CASES["bf16"][0], storage=regrow.Packed(kernels="dense"))
        return optimizer


def with_other_seeds(folder: Path, rank: int) -> None:
    sparsify = Sparsify(regrow.SET(sparsity=0.8, period=4), seed=rank)
    trainer(folder, sparsify, **RANKS).fit(Classifier(), batches())


def packed_too_late(folder: Path, rank: int) -> None:
    trainer(folder, **RANKS).fit(PacksTooLate(), batches())


REFUSED = {"other seeds": with_other_seeds, "packed too late": packed_too_late}
