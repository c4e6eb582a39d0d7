"""Packing inside what a trainer has wrapped already is refused on every rank, with the real trainers."""

import gc
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import regrow

METHOD = regrow.DSR(sparsity=0.8, period=2)


def data():
    return TensorDataset(torch.randn(32, 16), torch.zeros(32, dtype=torch.long))


def in_lightning(rank: int, folder: str) -> None:
    import lightning

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            regrow.attach(self, optimizer, METHOD, storage="packed")
            return optimizer

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=4, default_root_dir=folder, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Network(), DataLoader(data(), batch_size=4))


def in_transformers(rank: int, folder: str) -> None:
    import transformers

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))

        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}

    class Attach(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, model, optimizer, **_):
            regrow.attach(model, optimizer, METHOD, storage="packed")

    rows = [{"x": x, "labels": y} for x, y in data()]
    arguments = transformers.TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no"
    )
    transformers.Trainer(Network(), arguments, train_dataset=rows, callbacks=[Attach()]).train()


CASES = [in_lightning, in_transformers]


def train_in_each(rank: int, folder: str, port: str) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "regrow",
    }  # fmt: skip
    torch.set_num_threads(1)
    told = {}
    for case in CASES:
        try:
            case(rank, folder)
        except Exception as error:
            told[case.__name__] = f"{type(error).__name__}: {error}"
    torch.save(told, f"{folder}/rank{rank}")
    gc.collect()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("trainers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.spawn(train_in_each, (str(folder), port), nprocs=2)
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_packing_inside_what_a_trainer_has_wrapped_is_refused_on_every_rank(told, case):
    first, second = (one.get(case) for one in told)
    assert first == second
    assert first.startswith("ValueError: DistributedDataParallel would go on with the dense weights")
