"""Networks whose weights are spread over processes are saved as if they were not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from regrow.lab.run.spread import dealt, dealt_to_optimizer, shard, whole


@pytest.fixture
def a_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(is_sharded: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if is_sharded:
        shard(model, 1, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(16.0).view(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_states_of_shards_are_those_of_a_whole_network(a_group: None):
    plain, sharded = trained(is_sharded=False), trained(is_sharded=True)
    assert all(isinstance(parameter, DTensor) for parameter in sharded[0].parameters())
    for one, other in zip(plain, sharded, strict=True):
        torch.testing.assert_close(whole(other.state_dict()), dict(one.state_dict()))
    assert not any(isinstance(value, DTensor) for value in whole(sharded[0].state_dict()).values())


def test_shards_go_on_with_the_state_of_a_whole_network(a_group: None):
    (plain, of_plain), (sharded, of_sharded) = trained(is_sharded=False), trained(is_sharded=True)
    for _ in range(2):
        step(plain, of_plain)
    sharded.load_state_dict(dealt(plain.state_dict(), sharded.state_dict()))
    of_sharded.load_state_dict(dealt_to_optimizer(of_plain.state_dict(), of_sharded))
    for model, optimizer in ((plain, of_plain), (sharded, of_sharded)):
        step(model, optimizer)
    torch.testing.assert_close(whole(sharded.state_dict()), dict(plain.state_dict()))
