"""n steps are k steps, a save, a fresh process that loads, and the rest: bit for bit."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regrow

SCRIPT = """
import sys
import torch
import regrow
from regrow.testing import OPTIMIZERS, Trial

torch.set_num_threads(1)
name, granularity, optimizer, first, last, load, save = sys.argv[1:]
cls = regrow.METHODS[name]
options = {"sparsity": 0.8, "granularity": granularity}
if not cls.rewires_every_step:
    options |= {"period": 3, "until": 18}
trial = Trial(cls(**options), OPTIMIZERS[optimizer], seed=int(first))  # another seed where a state is loaded
if load != "-":
    with open(load, "rb") as file:
        trial.load(file.read())
for _ in range(int(first), int(last)):
    trial.step()
with open(save, "wb") as file:
    file.write(trial.save())
"""


def train_in_a_fresh_process(*arguments: object) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT, *map(str, arguments)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "granularity", "optimizer"),
    [
        ("DSR", "weight", "SGD with Nesterov momentum"),
        ("DSR", "kernel", "AdamW"),
        ("DeepR", "weight", "SGD"),
        ("SNFS", "weight", "AdamW"),
        ("RigL", "channel", "SGD with Nesterov momentum"),
    ],
)
def test_a_resumed_run_computes_the_same_bits(tmp_path: Path, name: str, granularity: str, optimizer: str) -> None:
    whole, half, rest = (tmp_path / part for part in ("whole", "half", "rest"))
    train_in_a_fresh_process(name, granularity, optimizer, 0, 20, "-", whole)
    train_in_a_fresh_process(name, granularity, optimizer, 0, 10, "-", half)
    train_in_a_fresh_process(name, granularity, optimizer, 10, 20, half, rest)
    assert same(torch.load(whole, weights_only=True), torch.load(rest, weights_only=True))


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_the_order_of_loading_does_not_matter() -> None:
    from regrow.testing import OPTIMIZERS, Trial

    optimizer = OPTIMIZERS["AdamW"]
    method = regrow.DSR(sparsity=0.8, period=2)
    first = Trial(method, optimizer)
    for _ in range(3):
        first.step()
    second = Trial(method, optimizer, seed=9)
    second.sparse.load_state_dict(first.sparse.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))  # torch would share the tensors
    second.model.load_state_dict(first.model.state_dict())
    for trial in (first, second):
        for _ in range(5):
            trial.step()
    assert same(first.model.state_dict(), second.model.state_dict())
    assert same(first.sparse.state_dict(), second.sparse.state_dict())
