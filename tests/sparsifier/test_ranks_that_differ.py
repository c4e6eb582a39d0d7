"""Ranks that train one network together and are not sparse alike hear of it, all in the same words, at the first step.

Two processes go through all cases one after the other, since starting them is what takes time.
"""

import gc
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import regrow
from regrow.distributed import agreement

METHOD = regrow.DSR(sparsity=0.8, period=1)


def two_layers(rank):
    torch.manual_seed(rank)  # DistributedDataParallel makes them alike
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(model, optimizer, num_steps=1):
    torch.manual_seed(dist.get_rank())  # every rank has data of its own
    for _ in range(num_steps):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def wrapped(rank, method=METHOD, **options):
    model = DistributedDataParallel(two_layers(rank))
    optimizer = sgd(model)
    return model, optimizer, regrow.attach(model, optimizer, method, **options)


# What differs


def seeds(rank):
    step(*wrapped(rank, seed=3 + rank)[:2])


def methods(rank):
    step(*wrapped(rank, regrow.DSR(sparsity=0.8, period=1 + rank))[:2])


def moments(rank):
    model = DistributedDataParallel(two_layers(rank))
    optimizer = torch.optim.AdamW(model.parameters())
    regrow.attach(model, optimizer, METHOD, moments=["aged", "informed"][rank])
    step(model, optimizer)


def layers(rank):
    step(*wrapped(rank, layers=["0.weight", "2.weight"][: 2 - rank])[:2])


def weights(rank):
    model, optimizer, _ = wrapped(rank)
    with torch.no_grad():
        model.module[0].weight *= 1 + rank
    step(model, optimizer)


def magnitudes_before_wrapping(rank):
    inner = two_layers(rank)
    optimizer = sgd(inner)
    regrow.attach(inner, optimizer, METHOD, start="magnitude")
    step(DistributedDataParallel(inner), optimizer)


def a_state_loaded_by_one_rank(rank):
    model, optimizer, sparse = wrapped(rank)
    step(model, optimizer, 2)
    saved = sparse.state_dict()
    model, optimizer, sparse = wrapped(0)
    if rank == 1:
        sparse.load_state_dict(saved)
    step(model, optimizer)


def the_wrapper_is_bypassed(rank):
    model, optimizer, _ = wrapped(rank)
    step(model.module, optimizer)


def packed_before_wrapping_with_other_seeds(rank):
    inner = two_layers(rank)
    optimizer = sgd(inner)
    regrow.attach(inner, optimizer, METHOD, seed=rank, storage="packed")
    step(DistributedDataParallel(inner), optimizer)


DIFFERENT = {
    seeds: r"rank 1 has another seed than rank 0; give every rank the same \(4 and 3\)",
    methods: r"rank 1 has another method than rank 0; .*period=2.* and .*period=1",
    moments: r"rank 1 has other moments of grown weights than rank 0; .* \(informed and aged\)",
    layers: "rank 1 has other sparse layers than rank 0",
    weights: "rank 1 has other weights than rank 0 in its sparse layers",
    magnitudes_before_wrapping: "rank 1 has another topology than rank 0; attach after wrapping",
    a_state_loaded_by_one_rank: r"rank 1 has taken another number of sparse steps than rank 0; .* \(2 and 0\)",
    the_wrapper_is_bypassed: "rank 1 has other gradients than rank 0, so that nobody averages them",
    packed_before_wrapping_with_other_seeds: "rank 1 has another seed than rank 0",
}

# What is put around the model behind the sparsifier's back


def packed_inside(rank, method=METHOD, storage="packed"):
    inner = two_layers(rank)
    model = DistributedDataParallel(inner)
    before = {name: tensor.clone() for name, tensor in inner.state_dict().items()}
    optimizer = sgd(model)
    try:
        regrow.attach(inner, optimizer, method, storage=storage)
    finally:
        assert all(torch.equal(tensor, before[name]) for name, tensor in inner.state_dict().items())
        assert not optimizer._optimizer_step_pre_hooks


def hashed_inside(rank):
    packed_inside(rank, regrow.Hashed(sparsity=0.8), "dense")


def packed_part_inside(rank):
    whole = nn.Sequential(two_layers(rank), nn.ReLU())
    model = DistributedDataParallel(whole)
    regrow.attach(whole[0], sgd(model), METHOD, storage="packed")


REFUSED_INSIDE = {
    packed_inside: "DistributedDataParallel would go on with the dense weights",
    hashed_inside: "DistributedDataParallel would go on with the dense weights",
    packed_part_inside: "DistributedDataParallel would go on with the dense weights",
}

# Sharded


def zero(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of something deprecated

    model = DistributedDataParallel(two_layers(rank))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    attach_unchanged(model, optimizer)


def attach_unchanged(model, optimizer, method=METHOD, **options):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        regrow.attach(model, optimizer, method, **options)
    finally:
        pairs = zip(map(local, before), map(local, model.parameters()), strict=True)
        assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def fsdp2(rank, method=METHOD, **options):
    model = two_layers(0)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    attach_unchanged(model, sgd(model), method, **options)


def packed_under_fsdp2(rank):
    fsdp2(rank, storage="packed")


def hashed_under_fsdp2(rank):
    fsdp2(rank, regrow.Hashed(sparsity=0.8))


def packed_under_tensor_parallelism(rank):
    model = parallelize_module(two_layers(0), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    attach_unchanged(model, sgd(model), storage="packed")


def all_places_under_fsdp2(rank):
    fsdp2(rank, regrow.TopK(sparsity=0.8))


def seeds_under_fsdp2(rank):
    fsdp2(rank, seed=3 + rank)


def methods_under_fsdp2(rank):
    fsdp2(rank, regrow.DSR(sparsity=0.8, period=1 + rank))


def starts_under_fsdp2(rank):
    fsdp2(rank, start=["random", "magnitude"][rank])


def not_finite_on_one_rank(rank):
    model = two_layers(0)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    with torch.no_grad():
        model[0].weight.to_local()[0, 0] = torch.nan if rank else 0.0
    attach_unchanged(model, sgd(model), start="magnitude")


def fsdp1(rank, **options):
    model = FullyShardedDataParallel(two_layers(0), device_id=torch.device("cpu"), **options)
    attach_unchanged(model, sgd(model))


def fsdp1_use_orig_params(rank):
    fsdp1(rank, use_orig_params=True)


def fsdp1_a_unit_for_each_layer(rank):
    fsdp1(rank, use_orig_params=True, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))


def fsdp1_inner_model_of_units(rank):
    inner = two_layers(0)
    options = {"use_orig_params": True, "auto_wrap_policy": ModuleWrapPolicy({nn.Linear})}
    model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), **options)
    attach_unchanged(inner, sgd(model))


def fsdp1_inner_model(rank):
    inner = two_layers(0)
    model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
    attach_unchanged(inner, sgd(model))


def fsdp1_inner_flat_model(rank):
    inner = two_layers(0)
    model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
    attach_unchanged(inner, sgd(model))


SHARDED = {
    zero: "ZeroRedundancyOptimizer keeps the state of a weight on one rank only",
    packed_under_fsdp2: r"0\.weight is a DTensor, spread over ranks by torch, which packed storage cannot hold",
    hashed_under_fsdp2: r"0\.weight is a DTensor, spread over ranks by torch, which hashed storage cannot hold",
    packed_under_tensor_parallelism: r"0\.weight is a DTensor, spread over ranks by torch, which packed storage",
    all_places_under_fsdp2: "TopK compares all places of a layer, which no rank has here",
    seeds_under_fsdp2: "rank 1 has another seed than rank 0",
    methods_under_fsdp2: "rank 1 has another method than rank 0",
    starts_under_fsdp2: "rank 1 has another start than rank 0",
    not_finite_on_one_rank: r"cannot start by magnitude: 0\.weight has weights that are NaN",
    fsdp1: "the model is sharded over ranks by FullyShardedDataParallel",
    fsdp1_use_orig_params: "the model is sharded over ranks by FullyShardedDataParallel",
    fsdp1_a_unit_for_each_layer: "the model is sharded over ranks by FullyShardedDataParallel",
    fsdp1_inner_model_of_units: "the model is sharded over ranks by FullyShardedDataParallel",
    fsdp1_inner_model: r"0\.weight is sharded over ranks by FullyShardedDataParallel",
    fsdp1_inner_flat_model: "_flat_param is sharded over ranks by FullyShardedDataParallel",
}

# Sharded later


def fsdp2_later(rank, is_optimizer_new=True):
    model = two_layers(0)
    optimizer = sgd(model)
    regrow.attach(model, optimizer, METHOD)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    step(model, sgd(model) if is_optimizer_new else optimizer)


def fsdp2_later_with_the_old_optimizer(rank):
    fsdp2_later(rank, is_optimizer_new=False)


def fsdp2_later_with_nothing_kept(rank):
    model = two_layers(0)
    regrow.attach(model, sgd(model), METHOD)
    gc.collect()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    step(model, sgd(model))


def fsdp1_later(rank, is_optimizer_new=True, **options):
    inner = two_layers(0)
    optimizer = sgd(inner)
    regrow.attach(inner, optimizer, METHOD)
    model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), **options)
    step(model, sgd(model) if is_optimizer_new else optimizer)


def fsdp1_later_use_orig_params(rank):
    fsdp1_later(rank, use_orig_params=True)


def fsdp1_later_use_orig_params_with_the_old_optimizer(rank):
    fsdp1_later(rank, is_optimizer_new=False, use_orig_params=True)


LATER = {
    fsdp2_later: r"the model has another 0\.weight than the one its optimizer trains sparsely",
    fsdp2_later_with_the_old_optimizer: r"the model has another 0\.weight than the one its optimizer trains sparsely",
    fsdp2_later_with_nothing_kept: r"0\.weight was sharded after it was attached to",
    fsdp1_later: r"the model has another 0\.weight than the one its optimizer trains sparsely",
    fsdp1_later_use_orig_params: r"this SGD trains 0\.weight, which is kept sparse in the steps of another SGD",
    fsdp1_later_use_orig_params_with_the_old_optimizer: r"0\.weight does not have the shape \(24, 16\) any more",
}

# What is right


def trainings_of_their_own(rank):
    model = two_layers(rank)
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, METHOD, seed=rank)
    step(model, optimizer, 3 + rank)
    assert sparse.num_steps == 3 + rank


def stages_of_a_pipeline(rank):
    groups = [dist.new_group([0]), dist.new_group([1])]
    model = DistributedDataParallel(nn.Linear(16, 4 + rank), process_group=groups[rank])
    optimizer = sgd(model)
    regrow.attach(model, optimizer, METHOD, seed=rank)
    step(model, optimizer, 2)


def two_networks_with_optimizers_of_their_own(rank):
    first, second = wrapped(rank), wrapped(rank, regrow.SET(sparsity=0.5, period=1))
    for _ in range(2):
        step(*first[:2])
        step(*second[:2])
    assert first[2].num_steps == second[2].num_steps == 2


def a_packed_network_wrapped_again(rank):
    inner = two_layers(rank)
    DistributedDataParallel(inner)  # nobody keeps it
    optimizer = sgd(inner)
    sparse = regrow.attach(inner, optimizer, METHOD, storage="packed")
    step(DistributedDataParallel(inner), optimizer, 2)
    assert sparse.num_steps == 2


RIGHT = [
    trainings_of_their_own,
    stages_of_a_pipeline,
    two_networks_with_optimizers_of_their_own,
    a_packed_network_wrapped_again,
]


def one_rank_never_attaches(rank):
    agreement.PATIENCE = timedelta(seconds=2)
    model = DistributedDataParallel(two_layers(rank))
    optimizer = sgd(model)
    if rank == 0:
        regrow.attach(model, optimizer, METHOD)
    step(model, optimizer)


CASES = [*DIFFERENT, *REFUSED_INSIDE, *SHARDED, *LATER, *RIGHT, one_rank_never_attaches]


def go_through_all(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    told = []
    for case in CASES:
        try:
            case(rank)
            told.append(None)
        except (ValueError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
        dist.barrier()
    torch.save(told, f"{folder}/rank{rank}")
    gc.collect()  # a DDP model that Python is left to clear away at its end makes torch 2.13 abort now and then
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[object, tuple[str | None, ...]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(go_through_all, (str(folder),), nprocs=2)
    both = [torch.load(folder / f"rank{rank}") for rank in range(2)]
    return dict(zip(CASES, zip(*both, strict=True), strict=True))


def named(case):
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("case", "sentence"), DIFFERENT.items(), ids=named)
def test_every_rank_hears_who_differs_in_what_at_the_first_step(told, case, sentence):
    first, second = told[case]
    assert first == second
    assert re.match(f"RuntimeError: {sentence}", first)


@pytest.mark.parametrize(("case", "sentence"), (REFUSED_INSIDE | SHARDED).items(), ids=named)
def test_what_cannot_be_attached_to_is_refused_by_all_ranks_with_nothing_changed(told, case, sentence):
    first, second = told[case]
    assert first == second
    assert re.match(f"ValueError: {sentence}", first)


@pytest.mark.parametrize(("case", "sentence"), LATER.items(), ids=named)
def test_a_model_that_is_sharded_after_attaching_is_refused_at_the_first_step(told, case, sentence):
    first, second = told[case]
    assert first == second
    assert re.match(f"RuntimeError: {sentence}", first)


@pytest.mark.parametrize("case", RIGHT, ids=named)
def test_what_is_no_training_of_all_ranks_together_goes_through(told, case):
    assert told[case] == (None, None)


def test_a_rank_that_never_attaches_is_named_after_a_while(told):
    sentence, of_the_other = told[one_rank_never_attaches]
    assert sentence.startswith(
        "RuntimeError: rank 1 came to no step with a sparse network within 2 s of rank 0's first"
    )
    assert of_the_other is None
