"""A network that is spread over ranks has the topology of one process with the same weights and gradients, bit for bit.

The ranks of a job go through all cases one after the other, since starting them is what takes time.
"""

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import regrow
from distributed.ranks import on_ranks
from every_method import in_every_way
from regrow.distributed.dtensor import like, part_like

NUM_STEPS = 4
UNITS = ("weight", regrow.Block(2, 3), "channel")
SPARSITIES = (0.35, 0.6, 0.8)
OPTIONS = {"period": 2, "until": 40, "threshold": 0.1, "temperature": 1e-3, "fraction": 0.4}


class Network(nn.Module):
    """Sizes of which few are multiples of a number of ranks; some ranks have nothing of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(6, 10, 3, bias=False)
        self.first = nn.Linear(12, 14)
        self.second = nn.Linear(15, 4)
        self.last = nn.Linear(6, 2)


def fsdp(model: Network) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def tensor_parallel(model: Network) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def both(model: Network) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])


def replicas(model: Network) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard")))


LAYOUTS = {2: (fsdp, tensor_parallel), 3: (fsdp,), 4: (fsdp, tensor_parallel, both, replicas)}


def methods() -> list[regrow.Method]:
    found = []
    for name, cls in regrow.METHODS.items():
        if cls.storage is not None or name == "Dense" or "dense_step" in cls.needs:
            continue
        by_weight = "sign" in cls.needs
        for units, sparsity in product(UNITS[:1] if by_weight else UNITS, SPARSITIES):
            found += in_every_way(cls, sparsity=sparsity, granularity=units, **OPTIONS)
    return found


def train_by_hand(method: regrow.Method, layout: Any = None, start: str = "random") -> list[Any]:
    """Steps with gradients that are a function of the step, and all that is left after each."""
    model = Network()
    if layout is not None:
        layout(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    sparse = regrow.attach(
        model, optimizer, method, start=start, seed=3, exclude=["last"] if "Block" in repr(method.granularity) else ()
    )
    for step in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, nn.Parameter) and hasattr(parameter, "placements"):
                gradient = like(part_like(gradient, parameter).clone(), parameter)
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        assert sparse.method.granularity != "weight" or sparse.active == sparse.budget
    masks = {name: whole(mask) for name, mask in sparse.masks().items()}
    weights = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    momenta = [whole(state["momentum_buffer"]) for state in optimizer.state.values()]
    return [masks, weights, momenta, repr(sparse.history), sparse.active, sparse.summary()]


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


CASES = [(method, "random") for method in methods()] + [
    (regrow.SET(sparsity=0.7, period=2, granularity=units), "magnitude") for units in UNITS
]


def go_through_all(expected: str) -> list[str]:
    """In which cases something is not as in one process."""
    wrong = []
    in_one_process = torch.load(expected, weights_only=False)
    first, *others = LAYOUTS[dist.get_world_size()]
    for number, (method, start) in enumerate(CASES):
        for layout in [first, *(others if number % 6 == 0 else ())]:
            if not same(train_by_hand(method, layout, start), in_one_process[number]):
                wrong.append(f"{layout.__name__}: {method}")
    return wrong


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("alone") / "expected"
    torch.save([train_by_hand(method, None, start) for method, start in CASES], path)
    return str(path)


@pytest.mark.parametrize("num_ranks", LAYOUTS)
def test_ranks_do_what_one_process_does_bit_for_bit(num_ranks, expected, tmp_path):
    assert on_ranks(num_ranks, go_through_all, tmp_path, expected) == [[]] * num_ranks
