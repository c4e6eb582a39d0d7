"""The promises that hold for every method, over random networks, dtypes, optimizers and settings."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from every_method import can_be_packed, choices, goes_by_weight, make
from regrow.testing import check_invariants, check_method

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-2),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@st.composite
def methods(draw):
    cls = regrow.METHODS[draw(st.sampled_from(sorted(regrow.METHODS)))]
    options = {"sparsity": draw(st.floats(0.0, 0.95)), "l1": draw(st.sampled_from([0.0, 1e-3]))}
    options["distribution"] = draw(st.sampled_from(["uniform", "er", "erk"]))
    if not cls.rewires_every_step:
        options["period"] = draw(st.integers(1, 3))
    if not goes_by_weight(cls):
        options["granularity"] = draw(st.sampled_from(["weight", "kernel", "channel"]))
    options |= {field: draw(st.sampled_from(ways)) for field, ways in choices(cls).items()}
    if cls is regrow.DSR:
        options |= {"prune": draw(st.one_of(st.integers(0, 60), st.floats(0, 1))), "threshold": 0.05}
    if cls is regrow.SET:
        options["fraction"] = draw(st.one_of(st.integers(0, 60), st.floats(0, 1)))
    if cls is regrow.Gradual:
        options["until"] = 6
    return make(cls, **options, temperature=1e-4)


@st.composite
def networks(draw):
    """A few convolutions and linear layers of odd sizes, behind each other, and what they eat."""
    channels = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    kernels = [draw(st.sampled_from([1, 3])) for _ in channels]
    widths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=2))
    parts, last = [], 2
    for num_out, kernel in zip(channels, kernels, strict=True):
        parts += [nn.Conv2d(last, num_out, kernel, padding=kernel // 2), nn.Tanh()]
        last = num_out
    parts.append(nn.Flatten())
    last *= 16
    for width in widths:
        parts += [nn.Linear(last, width), nn.Tanh()]
        last = width
    return nn.Sequential(*parts)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    network=networks(),
    method=methods(),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**32),
    storage=st.sampled_from(["dense", "packed"]),
)
def test_budget_zeros_and_clean_growth_after_every_step(network, method, optimizer, dtype, seed, storage):
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
        sparse = regrow.attach(network, trainer, method, seed=seed, storage=storage)
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
        assert all((tensor[came] == 0).all() for tensor in dense[name])


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
