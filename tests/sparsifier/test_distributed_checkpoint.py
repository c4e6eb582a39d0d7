"""Checkpoints by torch.distributed.checkpoint: states go in and out as they are."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import regrow
from distributed.ranks import on_ranks
from every_method import can_be_packed, make

NUM_RANKS = 2
METHODS = {
    name: make(cls, sparsity=0.8, period=2, until=60, threshold=0.05, temperature=1e-3)
    if not cls.rewires_every_step
    else make(cls, sparsity=0.8, temperature=1e-3)
    for name, cls in regrow.METHODS.items()
    if name != "Dense"
}
CASES = [(name, "dense") for name in METHODS] + [
    (name, "packed") for name, own in METHODS.items() if can_be_packed(own)
]
ALSO_ON_RANKS = [case for case in CASES if case[1] == "dense" or "free_gradient" not in METHODS[case[0]].needs]


class Trio:
    """Model, optimizer and sparsifier in training, as fresh as a new process has them; on ranks in DDP."""

    def __init__(self, name: str, storage: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        inner = nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4))
        self.optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
        is_on_ranks = dist.is_initialized()
        replaces = storage == "packed" or METHODS[name].storage is not None
        first = DistributedDataParallel(inner) if is_on_ranks and not replaces else inner
        kind = regrow.Packed(kernels="sparse") if storage == "packed" else storage
        self.sparse = regrow.attach(first, self.optimizer, METHODS[name], storage=kind)
        self.model = DistributedDataParallel(inner) if is_on_ranks and replaces else first

    def train(self, num_steps: int) -> "Trio":
        for _ in range(num_steps):
            generator = torch.Generator().manual_seed(self.sparse.num_steps)
            x = torch.randn(16, 12, generator=generator)
            nn.functional.mse_loss(self.model(x), x[:, :4]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def state(self) -> dict[str, object]:
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


def same(one: object, other: object) -> bool:
    """Whether two states say the same, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def goes_on(name: str, storage: str, path: Path) -> bool:
    """Whether a trio that was saved, and another that loads it, go on to the same bits."""
    run = Trio(name, storage).train(7)
    run.save(path)
    other = Trio(name, storage, seed=5).load(path)
    return same(run.train(6).state(), other.train(6).state()) and other.sparse.active == other.sparse.budget


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is said where there is one process
@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_fresh_trio_goes_on_from_a_checkpoint_to_the_same_bits(name, storage, tmp_path):
    assert goes_on(name, storage, tmp_path)


def go_on_at_a_rank(folder: str) -> list[tuple[str, str]]:
    sent = {name.partition(".")[2] for name in Trio("Static", "packed").model.named_module_buffers}
    assert sent == {"running_mean", "running_var", "num_batches_tracked"}, "no mark of packed values is"
    return [case for case in ALSO_ON_RANKS if not goes_on(*case, Path(folder, *case))]


def test_ranks_under_ddp_go_on_from_one_checkpoint_to_the_same_bits(tmp_path):
    assert on_ranks(NUM_RANKS, go_on_at_a_rank, tmp_path, str(tmp_path)) == [[]] * NUM_RANKS
