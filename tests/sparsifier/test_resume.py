"""n steps are k steps, a save, a fresh process that loads, and the rest: bit for bit."""

import copy
import subprocess
import sys
from pathlib import Path

import torch

import regrow

PROGRAM = Path(__file__).parents[1] / "resumed_runs.py"


def test_a_run_resumed_in_a_fresh_process_computes_the_same_bits(tmp_path: Path) -> None:
    whole, half, rest = (str(tmp_path / part) for part in ("whole", "half", "rest"))
    for arguments in (("0", "20", "-", whole), ("0", "10", "-", half), ("10", "20", half, rest)):
        subprocess.run([sys.executable, "-W", "error", PROGRAM, *arguments], check=True, timeout=300)
    expected, resumed = (torch.load(path, weights_only=True) for path in (whole, rest))
    assert {"DSR, dense", "DSR, packed", "RigL of channels, dense", "Hashed, dense"} <= expected.keys()
    assert expected.keys() == resumed.keys()
    assert [name for name in expected if not same(expected[name], resumed[name])] == []


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
