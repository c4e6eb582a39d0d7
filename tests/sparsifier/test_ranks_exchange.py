"""What ranks send each other in a step: DistributedDataParallel averages what a storage makes parameters, no more.

Two processes go through all cases one after the other, since starting them is what takes time.
"""

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import regrow
from regrow.methods import Method

NUM_WEIGHTS, NUM_BIASES, BUDGET = 16 * 24 + 24 * 4, 24 + 4, 120
METHOD = regrow.SET(sparsity=0.75, period=2)
CASES = ["plain", "dense", "packed"]


@dataclass(frozen=True, kw_only=True)  # and not a @method, which all tests of methods would find
class GrowsByGradient(Method):
    """Anybody's method that wants to see the gradient of free places."""

    needs = frozenset({"free_gradient"})


def two_layers() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def exchanged(case: str) -> dict[str, object]:
    """The lengths of what is averaged, and the bytes that gloo is asked to reduce in each step."""
    model, optimizer = two_layers()
    if case != "plain":
        sparse = regrow.attach(model, optimizer, METHOD, storage=case)
        assert sparse.budget == BUDGET
    wrapped = DistributedDataParallel(model)
    sent = [0]

    def counted(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent[-1] += bucket.buffer().nbytes
        return allreduce_hook(None, bucket)

    wrapped.register_comm_hook(None, counted)
    for _ in range(5):
        step(wrapped, optimizer)
        sent.append(0)
    lengths = {name: parameter.numel() for name, parameter in wrapped.module.named_parameters()}
    return {"lengths": lengths, "sent": sent[:-1], "rewirings": 0 if case == "plain" else len(sparse.history)}


def go_through_all(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    alone, its_optimizer = two_layers()
    regrow.attach(alone, its_optimizer, regrow.RigL(sparsity=0.75, period=1), storage="packed")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    told: dict[str, object] = {case: exchanged(case) for case in CASES}
    with pytest.raises(ValueError, match="processes") as attached:
        regrow.attach(*two_layers(), GrowsByGradient(sparsity=0.75), storage="packed")
    with pytest.raises(ValueError, match="processes") as attached_before:
        step(DistributedDataParallel(alone), its_optimizer)
    torch.save(told | {"refused": [str(attached.value), str(attached_before.value)]}, f"{folder}/rank{rank}")
    del attached, attached_before  # their tracebacks hold a DDP model
    gc.collect()  # a DDP model that Python is left to clear away at its end makes torch 2.13 abort now and then
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(go_through_all, (str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


def test_packed_storage_exchanges_one_vector_of_budget_length_for_all_sparse_layers(told):
    for rank in told:
        assert rank["packed"]["lengths"] == {"packed_values": BUDGET, "0.bias": 24, "2.bias": 4}


def test_dense_storage_exchanges_what_a_network_without_sparsity_does(told):
    for rank in told:
        assert rank["dense"]["lengths"] == rank["plain"]["lengths"]
        assert sum(rank["dense"]["lengths"].values()) == NUM_WEIGHTS + NUM_BIASES


@pytest.mark.parametrize(("case", "num_sparse"), [("plain", NUM_WEIGHTS), ("dense", NUM_WEIGHTS), ("packed", BUDGET)])
def test_every_step_sends_these_and_the_dense_parameters_whether_it_rewires_or_not(told, case, num_sparse):
    for rank in told:
        assert rank[case]["sent"] == 5 * [4 * (num_sparse + NUM_BIASES)]
        assert rank[case]["rewirings"] == (0 if case == "plain" else 2)


def test_packed_storage_refuses_to_grow_by_gradients_of_which_each_rank_sees_its_own(told):
    sentence = (
        "packed storage cannot grow by the gradients of several processes; use storage='dense', or regrow.GSE, "
        "which goes by those of a sample"
    )
    for rank in told:
        assert rank["refused"] == [sentence, sentence], "when it is attached, or at the first step of a job begun later"
