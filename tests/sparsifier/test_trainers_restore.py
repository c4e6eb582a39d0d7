"""Trainers that restore weights before there is an optimizer to attach to: Lightning and the Hugging Face Trainer."""

import logging
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

import regrow
from regrow.testing import check_invariants

L = pytest.importorskip("lightning")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

METHODS = {"DSR": regrow.DSR(sparsity=0.8, period=4, threshold=0.05), "RigL": regrow.RigL(sparsity=0.8, period=4)}
NUM_STEPS, HALF = 12, 6
pytestmark = pytest.mark.filterwarnings("ignore")  # of the trainers, which have many


class Waves(Dataset):
    """The same in every batch that is not shuffled: where in an epoch a trainer goes on is its own matter."""

    def __len__(self):
        return 8 * HALF

    def __getitem__(self, i):
        x = torch.linspace(i % 8, i % 8 + 3, 12).sin()
        return {"x": x, "labels": x[:4]}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# Lightning


class Module(L.LightningModule):
    """Attaches where it makes its optimizer, by when Lightning has restored the weights."""

    def __init__(self, method, takes):
        super().__init__()
        self.net, self.method, self.takes, self.saved = network(), method, takes, None

    def training_step(self, batch, _):
        return mse_loss(self.net(batch["x"]), batch["labels"])

    def on_save_checkpoint(self, checkpoint):
        checkpoint["sparse"] = self.sparse.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.saved = checkpoint["sparse"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        options = {"resume": self.saved} if self.takes == "resume" else {}
        self.sparse = regrow.attach(self, optimizer, self.method, seed=3, **options)
        if self.saved and self.takes == "load_state_dict":
            self.sparse.load_state_dict(self.saved)
        return optimizer


def fit(module, folder, num_steps, checkpoint=None):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = L.Trainer(
        max_steps=num_steps, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Waves(), batch_size=8), ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("name", METHODS)
def test_lightning_goes_on_to_the_same_bits(name, tmp_path):
    whole, half, rest = (Module(METHODS[name], "resume") for _ in range(3))
    fit(whole, tmp_path, NUM_STEPS)
    fit(half, tmp_path, HALF).save_checkpoint(tmp_path / "half.ckpt")
    (optimizer,) = fit(rest, tmp_path, NUM_STEPS, tmp_path / "half.ckpt").optimizers
    assert rest.sparse.num_steps == NUM_STEPS
    check_invariants(rest, optimizer, rest.sparse)
    assert same(rest.state_dict(), whole.state_dict())
    assert same(rest.sparse.masks(), whole.sparse.masks())


@pytest.mark.parametrize("name", METHODS)
def test_lightning_with_a_state_that_is_loaded_after_attaching_is_told_what_to_do(name, tmp_path):
    half, rest = (Module(METHODS[name], "load_state_dict") for _ in range(2))
    fit(half, tmp_path, HALF).save_checkpoint(tmp_path / "half.ckpt")
    with pytest.raises(ValueError, match=r"attach has set \d+ weights to 0 .* attach\(\.\.\., resume=state"):
        fit(rest, tmp_path, NUM_STEPS, tmp_path / "half.ckpt")


# Hugging Face


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels):
        return {"loss": mse_loss(self.net(x), labels)}


class Sparsify(transformers.TrainerCallback):
    """Attaches to what a callback is given, which is accelerate's wrapper, when the weights are restored."""

    def __init__(self, method, takes, checkpoint=None):
        self.method, self.takes = method, takes
        self.saved = torch.load(Path(checkpoint, "sparse.pt"), weights_only=True) if checkpoint else None

    def on_train_begin(self, args, state, control, model, optimizer, **others):
        assert type(optimizer).__name__ == "AcceleratedOptimizer"
        options = {"resume": self.saved} if self.takes == "resume" else {}
        self.sparse = regrow.attach(model, optimizer, self.method, seed=3, **options)
        if self.saved and self.takes == "load_state_dict":
            self.sparse.load_state_dict(self.saved)

    def on_save(self, args, state, control, **others):
        torch.save(self.sparse.state_dict(), Path(args.output_dir, f"checkpoint-{state.global_step}", "sparse.pt"))


def hugging_face(folder, method, takes="resume", checkpoint=None):
    """A training that is saved halfway, or goes on from there."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=NUM_STEPS, save_steps=HALF, per_device_train_batch_size=8, learning_rate=0.01,
        lr_scheduler_type="constant", use_cpu=True, report_to=[], disable_tqdm=True, seed=0, logging_strategy="no",
    )  # fmt: skip
    callback = Sparsify(method, takes, checkpoint)
    trainer = transformers.Trainer(Model(), arguments, train_dataset=Waves(), callbacks=[callback])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return trainer, callback.sparse


@pytest.mark.parametrize("name", METHODS)
def test_hugging_face_attached_in_a_callback_goes_on_to_the_same_bits(name, tmp_path):
    whole, expected = hugging_face(tmp_path / "whole", METHODS[name])
    assert expected.num_steps == NUM_STEPS
    rest, sparse = hugging_face(tmp_path / "rest", METHODS[name], checkpoint=tmp_path / "whole" / f"checkpoint-{HALF}")
    assert sparse.num_steps == NUM_STEPS
    check_invariants(rest.model, sparse.optimizer, sparse)
    assert same(rest.model.state_dict(), whole.model.state_dict())
    assert same(sparse.masks(), expected.masks())


def test_hugging_face_with_a_state_that_is_loaded_after_attaching_is_told_what_to_do(tmp_path):
    hugging_face(tmp_path / "whole", METHODS["DSR"])
    with pytest.raises(ValueError, match=r"attach has set \d+ weights to 0 .* attach\(\.\.\., resume=state"):
        hugging_face(tmp_path / "rest", METHODS["DSR"], "load_state_dict", tmp_path / "whole" / f"checkpoint-{HALF}")
