"""Real training of networks that are spread over ranks: promises after every step, checkpoints, files, what is sent."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import regrow
from distributed.ranks import on_ranks
from distributed.test_shards import methods, same, whole
from every_method import make
from regrow.distributed.collectives import SENT
from regrow.distributed.dtensor import local

METHODS = {
    name: make(cls, sparsity=0.8, period=2, until=60, threshold=0.05, temperature=1e-3)
    if not cls.rewires_every_step
    else make(cls, sparsity=0.8, temperature=1e-3)
    for name, cls in regrow.METHODS.items()
    if cls.storage is None and name != "Dense" and "dense_step" not in cls.needs
}


class Trio:
    """Model, optimizer and sparsifier in training; over ranks where there are some."""

    def __init__(self, name: str, seed: int = 0, widths: tuple[int, ...] = (12, 20, 7, 4)) -> None:
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
        self.model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            fully_shard(self.model[0], mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.sparse = regrow.attach(self.model, self.optimizer, METHODS[name])

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.sparse.num_steps)
        x = torch.randn(16, self.model[0].in_features, generator=generator)
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, num_steps: int) -> "Trio":
        for _ in range(num_steps):
            self.step()
        return self

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "sparse": self.sparse.state_dict()}

    def save(self, path: Path) -> None:
        dcp.save(self.state(), checkpoint_id=path, no_dist=not dist.is_initialized())

    def load(self, path: Path) -> "Trio":
        state = self.state()
        dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.sparse.load_state_dict(state["sparse"])
        return self

    def check_promises(self) -> None:
        assert self.sparse.active == self.sparse.budget
        self.sparse.check()
        for name, mask in self.sparse.masks().items():
            parameter = self.model.get_parameter(name)
            like = [value for value in self.optimizer.state[parameter].values() if value.shape == parameter.shape]
            assert len(like) == 2
            for tensor in (parameter.detach(), *like):
                assert not local(tensor)[~local(mask)].any()


def all_of(state: Any) -> Any:
    """A state with whole tensors."""
    if isinstance(state, dict):
        return {key: all_of(value) for key, value in state.items()}
    return whole(state) if isinstance(state, torch.Tensor) else state


def train_with_promises() -> dict[str, Any]:
    told = {}
    for name in METHODS:
        trio = Trio(name)
        for _ in range(6):
            trio.step()
            trio.check_promises()
        told[name] = [repr(trio.sparse.history), trio.sparse.metrics(), trio.sparse.summary()]
    return told


def go_on_alike(folder: str) -> list[str]:
    """In which methods a fresh job does not go on from a checkpoint as the one that wrote it."""
    wrong = []
    for name in METHODS:
        run = Trio(name).train(5)
        run.save(Path(folder, name))
        wrong += [] if same(all_of(run.state()), all_of(run.state())) else [name]
        other = Trio(name, seed=5).load(Path(folder, name))
        if not same(all_of(run.train(4).state()), all_of(other.train(4).state())):
            wrong.append(name)
    return wrong


def load_all(folder: str) -> dict[str, Any]:
    """What is in checkpoints, whole, and what becomes of it in a few steps."""
    found = {}
    for name in METHODS:
        trio = Trio(name, seed=7).load(Path(folder, name))
        found[name] = [all_of(trio.state())]
        trio.train(3).check_promises()
    return found


def files(folder: str) -> list[str]:
    """Methods and units of which the file of a sharded model is another than that of the whole one."""
    wrong = []
    for number, method in enumerate(methods()[::5]):
        made = []
        for is_sharded in (True, False):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(12, 22), nn.BatchNorm1d(22), nn.Linear(22, 6))
            if is_sharded:
                fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
            path = Path(folder, f"{number}-{is_sharded}" if is_sharded else f"{number}-whole-{dist.get_rank()}")
            regrow.save(path, model, sparse)
            made.append(path.read_bytes())
            dist.barrier()
            regrow.save(path, model)
            made.append(path.read_bytes())
            dist.barrier()
        if made[:2] != made[2:]:
            wrong.append(repr(method))
    return wrong


def whole_and_loaded(folder: str) -> list[torch.Tensor]:
    """A model that was saved whole, and what a sharded one has of its file."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(12, 21), nn.ReLU(), nn.Linear(21, 6))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.SET(sparsity=0.8))
    path = Path(folder, f"for-shards-{dist.get_rank()}")
    regrow.save(path, model, sparse)
    other = nn.Sequential(nn.Linear(12, 21), nn.ReLU(), nn.Linear(21, 6))
    fully_shard(other, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    masks = regrow.load(path, other)
    again = regrow.attach(other, torch.optim.SGD(other.parameters(), lr=0.1), regrow.SET(sparsity=0.8), start=masks)
    before = [*model.parameters(), *sparse.masks().values()]
    after = [*other.parameters(), *again.masks().values()]
    return [torch.stack([own, whole(theirs)]).detach() for own, theirs in zip(before, after, strict=True)]


def sent_by(name: str, widths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Collectives and bytes of each step but the first, which compares ranks."""
    trio = Trio(name, widths=widths)
    told = []
    for _ in range(7):
        before = SENT.num_collectives, SENT.num_bytes
        trio.step()
        told.append((SENT.num_collectives - before[0], SENT.num_bytes - before[1]))
    return told[1:]


def what_is_sent() -> dict[str, Any]:
    return {
        name: [sent_by(name, widths) for widths in ((16, 64, 8), (16, 512, 8), (16, *[64] * 8, 8))] for name in METHODS
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    return on_ranks(2, go_through_all, folder, str(folder))


def go_through_all(folder: str) -> dict[str, Any]:
    return {
        "promises": train_with_promises(),
        "resumed": go_on_alike(folder),
        "loaded": load_all(folder),
        "files": files(folder),
        "of file": whole_and_loaded(folder),
        "sent": what_is_sent(),
        "folder": folder,
    }


def test_all_promises_hold_on_every_rank_after_every_step_and_ranks_agree(told):
    assert told[0]["promises"] == told[1]["promises"]


def test_a_fresh_job_goes_on_from_a_checkpoint_to_the_same_bits(told):
    assert told[0]["resumed"] == told[1]["resumed"] == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is said where there is one process
def test_a_checkpoint_of_two_ranks_is_loaded_by_one_process_and_by_three_ranks(told, tmp_path):
    folder = told[0]["folder"]
    assert same(load_all(folder), told[0]["loaded"])
    for of_three in on_ranks(3, load_all, tmp_path, folder):
        assert same(of_three, told[0]["loaded"])


def test_the_file_of_a_sharded_model_is_that_of_the_whole_one(told):
    assert told[0]["files"] == told[1]["files"] == []


def test_a_sharded_model_is_filled_from_a_file(told):
    for of_rank in told:
        assert all(torch.equal(own, theirs) for own, theirs in of_rank["of file"])


def test_a_step_that_rewires_nothing_sends_nothing(told):
    for name, (steps, *_) in told[0]["sent"].items():
        if not METHODS[name].rewires_every_step:
            assert steps[1::2] == [(0, 0)] * 3, name


def test_what_a_rewiring_sends_depends_neither_on_the_size_of_layers_nor_in_number_on_how_many_there_are(told):
    for name, (small, wide, deep) in told[0]["sent"].items():
        if METHODS[name].rewires:
            assert max(small)[0] > 0, name
            for steps in (small, wide, deep):
                assert max(steps)[0] <= 40, name
            assert max(num_bytes for _, num_bytes in wide) < 2 * 60_000, name
            assert max(num_bytes for _, num_bytes in deep) < 9 * 60_000, name


def train_until_killed(folder: str) -> None:
    trio = Trio("RigL")
    for _ in range(10):
        trio.train(2).save(Path(folder, str(trio.sparse.num_steps + 2)))
        dist.barrier()
        if dist.get_rank() == 1 and trio.sparse.num_steps == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def go_on_from_the_last(folder: str) -> list[Any]:
    last = max(Path(folder).glob("*/.metadata"), key=lambda path: int(path.parent.name)).parent
    trio = Trio("RigL", seed=3).load(last)
    return [trio.sparse.num_steps, all_of(trio.train(9 - trio.sparse.num_steps).state())]


def never_killed() -> Any:
    return all_of(Trio("RigL").train(9).state())


def test_a_rank_that_is_killed_leaves_a_checkpoint_from_which_all_go_on(tmp_path):
    folders = [tmp_path / name for name in ("killed", "again", "never", "checkpoints")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(torch.multiprocessing.ProcessExitedException):
        on_ranks(2, train_until_killed, folders[0], str(folders[3]))
    again = on_ranks(2, go_on_from_the_last, folders[1], str(folders[3]))
    assert [step for step, _ in again] == [6, 6]
    assert same([state for _, state in again], on_ranks(2, never_killed, folders[2]))
