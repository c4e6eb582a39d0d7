"""Four ranks that shard each tensor in two ways, and what goes wrong on one of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import regrow
from distributed.ranks import on_ranks
from distributed.test_shards import whole
from regrow.core.evidence import Evidence, Units
from regrow.core.row import Tally
from regrow.distributed.dtensor import local
from regrow.methods import Memory, Method, prune


class Saliency(Method):
    """Anybody's method that looks at evidence itself, and not through a rule."""

    needs = frozenset({"gradient"})

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(0.3, tally.active, tally.free)

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        return evidence.smallest(counts, score=(evidence.weight * evidence.gradient).abs())


def spread(method: Method) -> tuple[nn.Module, torch.optim.Optimizer, regrow.Sparsifier]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 18), nn.ReLU(), nn.Linear(18, 8))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, regrow.attach(model, optimizer, method)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, is_wrong: bool = False) -> None:
    torch.manual_seed(dist.get_rank() // 2)  # ranks of one tensor-parallel group have the same data
    model(torch.randn(8, 12)).square().mean().backward()
    if is_wrong and dist.get_rank() == 3:
        local(model[0].weight.grad).fill_(torch.nan)
    optimizer.step()
    optimizer.zero_grad()


def train(method: Method) -> list[Any]:
    model, optimizer, sparse = spread(method)
    for _ in range(6):
        step(model, optimizer)
        assert sparse.active == sparse.budget
        for name, mask in sparse.masks().items():
            parameter = model.get_parameter(name)
            for tensor in (parameter, optimizer.state[parameter]["exp_avg"]):
                assert not local(tensor.detach())[~local(mask)].any()
        with torch.no_grad():
            model(torch.randn(8, 12))  # after which FSDP keeps the outermost parameters whole
        sparse.check()
    return [repr(sparse.history), {name: whole(mask) for name, mask in sparse.masks().items()}]


def sentence_of(method: Method) -> str:
    model, optimizer, sparse = spread(method)
    before = {name: whole(mask) for name, mask in sparse.masks().items()}
    step(model, optimizer)
    with pytest.raises(ValueError, match="cannot rewire") as raised:
        step(model, optimizer, is_wrong=True)
    assert all(torch.equal(whole(mask), before[name]) for name, mask in sparse.masks().items())
    return str(raised.value)


def go_through_all() -> dict[str, Any]:
    often = {"sparsity": 0.7, "period": 2, "until": 40}
    cases = [regrow.RigL(**often), regrow.DSR(sparsity=0.7, period=2, threshold=0.05), Saliency(sparsity=0.7, period=2)]
    return {
        "trained": [train(method) for method in cases],
        "wrong": [sentence_of(cases[0]), sentence_of(cases[2])],
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(4, go_through_all, tmp_path_factory.mktemp("four"))


def test_ranks_agree_and_keep_all_promises_in_every_step(told):
    for own in told[1:]:
        for (history, masks), (others, of_others) in zip(told[0]["trained"], own["trained"], strict=True):
            assert history == others
            assert all(torch.equal(mask, of_others[name]) for name, mask in masks.items())


def test_what_goes_wrong_on_one_rank_is_said_on_all_and_nothing_is_rewired(told):
    sentence = "cannot rewire: 0.weight has weights that are not finite; lower the learning rate or clip gradients"
    assert [own["wrong"] for own in told] == [[sentence] * 2] * 4
