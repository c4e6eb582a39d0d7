"""The promises that hold for every method, over random networks, dtypes, optimizers and settings."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from any_training import OPTIMIZERS, methods, moments, networks
from every_method import can_be_packed, goes_by_weight
from regrow.testing import check_invariants, check_method


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    network=networks(),
    method=methods(),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**32),
    storage=st.sampled_from(["dense", "packed"]),
    data=st.data(),
)
def test_budget_zeros_and_clean_growth_after_every_step(network, method, optimizer, dtype, seed, storage, data):
    if storage == "packed" and not can_be_packed(method):
        storage = "dense"
    network = network.to(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        images = torch.randn(4, 2, 4, 4, dtype=dtype)
        for parameter in network.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    trainer = OPTIMIZERS[optimizer](network.parameters())
    sizes = [p.numel() for name, p in network.named_parameters() if name.endswith("weight")]
    try:
        how = data.draw(moments(method, optimizer))
        sparse = regrow.attach(network, trainer, method, seed=seed, storage=storage, moments=how)
    except ValueError as error:
        if "cannot leave one unit in each" not in str(error):
            raise
        return
    if method.granularity == "weight" and not isinstance(method, regrow.Dense):
        assert sparse.target == round((1 - method.sparsity) * sum(sizes))
    check_invariants(network, trainer, sparse)
    for step in range(1, 8):
        before = sparse.masks()
        network(images).square().mean().backward()
        trainer.step()
        trainer.zero_grad()
        check_invariants(network, trainer, sparse)
        record = next((r for r in sparse.history if r.step == step), None)
        if record and not method.rewires_every_step:
            _check_record(sparse, network, trainer, before, record)


def _check_record(sparse, network, trainer, before, record):
    dense = sparse.storage.dense_tensors(trainer)
    sizes = {layer.name: layer.unit_size for layer in sparse.storage.layers}
    for name, mask in sparse.masks().items():
        came, went = mask & ~before[name], before[name] & ~mask
        assert int(went.sum()) == record.pruned[name] * sizes[name], "a just-pruned unit returned"
        assert int(came.sum()) == record.grown[name] * sizes[name]
        clean = [] if "dense_step" in sparse.method.needs else dense[name]
        clean = clean[: 1 if sparse.moments == "informed" else None]
        assert all((tensor[came] == 0).all() for tensor in clean)


@pytest.mark.parametrize("granularity", ["weight", "kernel", "channel"])
@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_every_method_conforms(name, granularity):
    if goes_by_weight(regrow.METHODS[name]) and granularity != "weight":
        pytest.skip("goes by single weights")
    check_method(regrow.METHODS[name](sparsity=0.8, granularity=granularity))


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_every_method_that_can_be_packed_conforms_there_too(name):
    method = regrow.METHODS[name](sparsity=0.8)
    if not can_be_packed(method):
        pytest.skip("needs an entry for every place")
    check_method(method, storage="packed")


def test_the_conformance_suite_catches_a_method_that_grows_too_little():
    class Forgetful(regrow.SET):
        def grow_counts(self, tally, evidence, key):
            return [max(n - 1, 0) for n in tally.pruned]

    with pytest.raises(AssertionError, match="are active under a budget"):
        check_method(Forgetful(sparsity=0.8))


def test_an_infinite_gradient_at_an_inactive_place_does_no_harm():
    layer = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(layer, optimizer, regrow.Static(sparsity=0.5))
    mask = sparse.masks()["weight"]
    layer.weight.grad = torch.ones(8, 8).masked_fill(~mask, math.inf)
    optimizer.step()
    assert layer.weight.isfinite().all()
    assert (layer.weight[~mask] == 0).all()


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_nan_makes_a_rewiring_raise_with_nothing_changed(name):
    cls = regrow.METHODS[name]
    if not cls.rewires:
        pytest.skip("never rewires")
    method = cls(sparsity=0.5) if cls.rewires_every_step else cls(sparsity=0.5, period=2, until=9)
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    sparse = regrow.attach(network, optimizer, method)
    with torch.no_grad():
        active = sparse.masks()["1.weight"].nonzero()[0]
        network[1].weight[tuple(active)] = math.nan
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if not cls.rewires_every_step:
        optimizer.step()
    before = copy.deepcopy(sparse.state_dict())
    with pytest.raises(ValueError, match=r"1\.weight"):
        optimizer.step()
    after = sparse.state_dict()
    assert after["step"] == before["step"]
    assert after["memory"] == before["memory"]
    assert all(torch.equal(mask, after["masks"][layer]) for layer, mask in before["masks"].items())


def test_a_nan_in_the_growth_scores_names_the_layer():
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    sparse = regrow.attach(network, optimizer, regrow.RigL(sparsity=0.5, period=1))
    masks = sparse.masks()
    for name, parameter in network.named_parameters():
        parameter.grad = torch.ones_like(parameter)
        if name == "1.weight":
            parameter.grad[tuple((~masks[name]).nonzero()[0])] = math.nan
    with pytest.raises(ValueError, match=r"1\.weight has gradients that are not finite"):
        optimizer.step()
    assert all(torch.equal(mask, masks[name]) for name, mask in sparse.masks().items())
