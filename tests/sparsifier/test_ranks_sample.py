"""Ranks that grow among candidates in packed storage: they average the gradients there, and nothing else, to agree."""

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow

NUM_STEPS, PERIOD, NUM_PASSES = 12, 3, 2
METHOD = regrow.GSE(sparsity=0.8, period=PERIOD, until=40)


def train(rank: int, num_ranks: int, storage: str) -> dict[str, object]:
    """Each rank has its share of the same samples, and comes to it in two backward passes."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).double()
    model: nn.Module = DistributedDataParallel(inner) if num_ranks > 1 and storage == "dense" else inner
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = regrow.attach(model, optimizer, METHOD, storage=storage)
    if num_ranks > 1 and storage == "packed":
        model = DistributedDataParallel(inner)
    sent = lengths_sent()
    samples = torch.randn(NUM_STEPS, NUM_PASSES, 2, 8, 16, generator=torch.Generator().manual_seed(1)).double()
    per_step: list[list[int]] = []
    for passes in samples:
        for own in passes:
            model(own[rank] if num_ranks > 1 else own).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        per_step.append(sent.copy())
        sent.clear()
    told = {"masks": sparse.masks(), "sent": per_step, "grown": sum(sparse.history[-1].grown.values())}
    del model, inner, optimizer, sparse
    gc.collect()  # a DDP model that Python is left to clear away at its end makes torch 2.13 abort now and then
    return told


def lengths_sent() -> list[int]:
    """What is asked for by Python to be reduced; DDP itself is C++ and does not pass here."""
    lengths: list[int] = []
    original = dist.all_reduce

    def recorded(tensor, *args, **kwargs):  # type: ignore[no-untyped-def]
        lengths.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    dist.all_reduce = recorded
    return lengths


def train_on_rank(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save({storage: train(rank, 2, storage) for storage in ("dense", "packed")}, f"{folder}/rank{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(train_on_rank, (str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_ranks_grow_what_one_process_grows_from_all_samples(told, storage):
    alone = train(0, 1, "dense")
    assert alone["grown"] > 0
    for rank in told:
        assert rank[storage]["masks"].keys() == alone["masks"].keys()
        assert all(torch.equal(mask, alone["masks"][name]) for name, mask in rank[storage]["masks"].items())


def test_they_send_one_vector_as_long_as_the_sample_in_steps_that_rewire(told):
    budget = round(0.2 * (16 * 24 + 24 * 4))
    for rank in told:
        assert not any(rank["dense"]["sent"])
        for number, lengths in enumerate(rank["packed"]["sent"], start=1):
            assert len(lengths) == (number % PERIOD == 0)
            assert all(0.5 * budget < length <= budget + 2 for length in lengths)
