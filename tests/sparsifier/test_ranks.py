"""Every rank of a distributed job holds the same topology, and nobody sends it."""

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow

NUM_RANKS = 2


def train_on_rank(rank: int, folder: str) -> None:
    """One process of the job; it trains under every method, one after the other."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=NUM_RANKS)
    torch.save({case: train(rank, *case) for case in cases()}, f"{folder}/rank{rank}")
    with pytest.raises(ValueError, match="the gradients of several processes"):
        train(rank, "RigL", "packed")
    dist.destroy_process_group()


def cases() -> list[tuple[str, str]]:
    dense = [(name, "dense") for name, cls in regrow.METHODS.items() if cls.rewires]
    packed = [name for name, cls in regrow.METHODS.items() if cls.rewires and cls.needs <= {"gradient", "sign"}]
    return [*dense, *((name, "packed") for name in packed)]


def train(rank: int, name: str, storage: str) -> list[object]:
    torch.manual_seed(rank)  # ranks begin with different weights; DDP makes them alike
    inner = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    model = DistributedDataParallel(inner) if storage == "dense" else inner
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    cls = regrow.METHODS[name]
    method = cls(sparsity=0.8) if cls.rewires_every_step else cls(sparsity=0.8, period=1, until=60)
    calls_to_collectives = count_collectives()
    sparse = regrow.attach(model, optimizer, method, storage=storage)
    if storage == "packed":
        model = DistributedDataParallel(inner)
        calls_to_collectives.clear()
    per_step = []
    for _ in range(50):
        before = len(calls_to_collectives)
        model(torch.randn(8, 16)).square().mean().backward()  # every rank has data of its own
        optimizer.step()
        optimizer.zero_grad()
        per_step.append(len(calls_to_collectives) - before)
    assert set(per_step) == {0}, "regrow itself exchanges nothing"
    assert sparse.active == sparse.budget
    kept = [model.module.state_dict(), sparse.masks(), sparse.num_steps, sum(r.step > 0 for r in sparse.history)]
    del model, inner, optimizer, sparse
    gc.collect()  # a DDP model that Python is left to clear away at its end makes torch 2.13 abort now and then
    return kept


def count_collectives() -> list[str]:
    """Record every collective called from Python; those inside DDP's backward are C++ and do not pass here."""
    calls: list[str] = []
    for name in ("all_reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list", "barrier"):
        original = getattr(dist, name)

        def recorded(*args, original=original, name=name, **kwargs):  # type: ignore[no-untyped-def]
            calls.append(name)
            return original(*args, **kwargs)

        setattr(dist, name, recorded)
    return calls


def test_both_ranks_rewire_alike_fifty_times(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(train_on_rank, (str(tmp_path),), nprocs=NUM_RANKS)
    first, second = (torch.load(tmp_path / f"rank{rank}", weights_only=True) for rank in range(NUM_RANKS))
    assert {("DSR", "dense"), ("RigL", "dense"), ("DSR", "packed")} <= first.keys()
    for (name, storage), (weights, masks, step, rewirings) in first.items():
        other = second[name, storage]
        assert step == other[2] == 50
        assert rewirings == other[3] == (1 if regrow.METHODS[name].rewires_every_step else 50), name
        assert list(masks) == ["0.weight", "2.weight"], "names without the wrapper's prefix"
        assert all(torch.equal(mask, other[1][layer]) for layer, mask in masks.items()), (name, storage)
        assert all(torch.equal(weight, other[0][key]) for key, weight in weights.items()), (name, storage)
