"""Small transformers in the Trainer of Hugging Face."""

from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import regrow
from regrow.integrations.transformers import Sparsify

CASES = {
    "accumulates and clips": (
        "bert",
        regrow.DSR(sparsity=0.8, period=3, l1=1e-4),
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
    ),
    "bf16 autocast": ("gpt2", regrow.RigL(sparsity=0.8, period=3, until=11), {"bf16": True}),
    "all of it": (
        "bert",
        regrow.MEST(sparsity=0.8, period=3, until=11),
        {"bf16": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
    ),
    "packed": ("gpt2", regrow.DSR(sparsity=0.8, period=3), {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}),
}
STEPS, SAVED_AT = 12, 7
RANKS = {"ddp_backend": "gloo"}
"""What a trainer of two ranks is told."""
GPT2_LAYERS = ["*.c_*.weight"]


def bert():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=3, **size))


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2))


def packed(method, seed=0):
    """With its optimizer, before a Trainer restores and wraps it."""
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    storage = regrow.Packed(kernels="dense")
    return model, regrow.attach(model, optimizer, method, layers=GPT2_LAYERS, storage=storage, seed=seed)


class Words(Dataset):
    def __init__(self, are_their_own_labels):
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(20, (48, 6), generator=generator)
        self.labels = self.words if are_their_own_labels else self.words[:, 0] % 3

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": self.labels[i]}


def trainer(folder, model, *callbacks, optimizers=(None, None), model_init=None, kind=Trainer, **options):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "save_strategy": "no"}
    usual = {"max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    args = TrainingArguments(output_dir=str(folder), **{**quiet, **usual, **options})
    words = Words(isinstance(model, GPT2LMHeadModel))
    return kind(
        model,
        args,
        model_init=model_init,
        train_dataset=words,
        eval_dataset=words,
        callbacks=list(callbacks),
        optimizers=optimizers,
    )


def state_of(model, callback):
    return {
        "model": model.state_dict(),
        "masks": callback.sparse.masks(),
        "optimizer": callback.sparse.optimizer.state_dict(),
        "rewirings": len(callback.sparse.history),
    }


def fit(name, folder: Path, resume=False, **options):
    """Train a case to its end, from the beginning or from the checkpoint that another training left."""
    (kind, method, more), seed = CASES[name], 5 if resume else 0
    if name == "packed":
        model, sparse = packed(method, seed)
        callback, options = Sparsify(sparse), options | {"optimizers": (sparse.optimizer, None)}
    else:
        model = bert() if kind == "bert" else gpt2()
        callback = Sparsify(method, layers=GPT2_LAYERS if kind == "gpt2" else None, seed=seed)
    own = folder / name.replace(" ", "-")
    saves = {} if resume else {"save_strategy": "steps", "save_steps": SAVED_AT}
    running = trainer(folder / "other" if resume else own, model, callback, **saves, **more, **options)
    running.train(resume_from_checkpoint=str(own / f"checkpoint-{SAVED_AT}") if resume else None)
    return state_of(model, callback)


class PacksTooLate(TrainerCallback):
    """The Trainer has wrapped the model when training begins."""

    def on_train_begin(self, args, state, control, *, model, optimizer, **_):
        regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=4), storage=regrow.Packed(kernels="dense"))


def with_other_seeds(folder: Path, rank: int) -> None:
    trainer(folder, bert(), Sparsify(regrow.SET(sparsity=0.8, period=4), seed=rank), **RANKS).train()


def packed_too_late(folder: Path, rank: int) -> None:
    trainer(folder, bert(), PacksTooLate(), **RANKS).train()


REFUSED = {"other seeds": with_other_seeds, "packed too late": packed_too_late}
