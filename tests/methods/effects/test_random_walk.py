"""DeepR's random walk: drift towards zero, and noise."""

import copy

import pytest
import torch
from torch import nn

import regrow
from regrow import DeepR
from regrow.core import random
from regrow.methods.effects.random_walk import drift_and_noise
from regrow.testing import check_invariants
from two_layers import sgd, train, two_layers


def test_drift_is_towards_zero_from_either_side():
    signs = torch.tensor([True, False])
    step = drift_and_noise(signs, torch.zeros(2), rates=0.5, l1=0.25, temperature=0.0)
    assert step.tolist() == [-0.125, 0.125]


def test_noise_has_the_spread_of_the_random_walk():
    # sqrt(2 rate T) = sqrt(2 * 0.5 * 0.25) = 0.5
    noise = torch.tensor([1.0, -2.0])
    step = drift_and_noise(torch.tensor([True, True]), noise, rates=0.5, l1=0.0, temperature=0.25)
    assert step.tolist() == [0.5, -1.0]


def test_each_weight_may_have_a_rate_of_its_own():
    rates = torch.tensor([0.5, 2.0])
    step = drift_and_noise(torch.tensor([True, False]), torch.ones(2), rates, l1=0.25, temperature=1.0)
    assert step.tolist() == pytest.approx([1 - 0.125, 2 + 0.5])


def test_a_rate_of_nothing_moves_nothing():
    step = drift_and_noise(torch.tensor([True, False]), torch.ones(2), rates=0.0, l1=1.0, temperature=1.0)
    assert step.tolist() == [0, 0]


def test_the_walk_has_variance_two_rate_temperature():
    noise = random.normal(random.key(0, 1), torch.arange(1 << 16))
    step = drift_and_noise(torch.ones(1 << 16).bool(), noise, rates=0.1, l1=0.0, temperature=1e-3)
    assert step.var().item() == pytest.approx(2 * 0.1 * 1e-3, rel=0.03)


# On a network


def walked(deepr: DeepR, num_steps: int = 1, rate: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """How far the weights of a layer of eight moved in the last of some steps without a gradient, and its mask."""
    layer = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[40.0, -40, 40, -40], [40, 40, -40, -40]]))  # too far from 0 to get there
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    sparse = regrow.attach(layer, optimizer, deepr, seed=3)
    before = layer.weight.detach().clone()
    for _ in range(num_steps):
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
    return layer.weight.detach() - before, sparse.masks()["weight"]


def test_only_active_weights_walk():
    moved, mask = walked(DeepR(sparsity=0.5, temperature=0.5))
    assert (moved[mask] != 0).all()
    assert (moved[~mask] == 0).all()


def test_without_temperature_every_active_weight_drifts_towards_zero_by_rate_times_l1():
    moved, mask = walked(DeepR(sparsity=0.5, temperature=0.0, l1=0.5), rate=2.0)
    assert moved[mask].abs().tolist() == [1] * 4
    signs = torch.tensor([[40.0, -40, 40, -40], [40, 40, -40, -40]]).sign()
    assert torch.equal(moved, -signs * mask)


@pytest.mark.parametrize("temperature", [{0: 0.5, 2: 2.0}, lambda step: 0.5 if step < 2 else 2.0])
def test_the_walk_has_the_temperature_of_its_step(temperature):
    # Four times as hot, twice as far, with the same noise.
    for num_steps, factor in ((1, 1), (2, 2)):
        cool, mask = walked(DeepR(sparsity=0.5, l1=0.0, temperature=0.5), num_steps)
        moved, _ = walked(DeepR(sparsity=0.5, l1=0.0, temperature=temperature), num_steps)
        assert moved[mask].tolist() == pytest.approx((factor * cool[mask]).tolist(), abs=1e-4)


def test_every_step_has_noise_of_its_own():
    first, _ = walked(DeepR(sparsity=0.5, temperature=0.5), num_steps=1)
    second, _ = walked(DeepR(sparsity=0.5, temperature=0.5), num_steps=2)
    assert not torch.allclose(first, second)


def test_parameter_groups_with_rates_of_their_own():
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5))
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    sparse = regrow.attach(model, optimizer, DeepR(sparsity=0.5, l1=1e-2, temperature=1e-2))
    before = copy.deepcopy(model[0].weight)
    for _ in range(3):
        model(torch.ones(2, 10)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        check_invariants(model, optimizer, sparse)
    assert torch.equal(model[0].weight, before), "no rate, no walk"
    assert sparse.history[-1].pruned["1.weight"] > 0


def test_a_temperature_that_falls_below_zero_is_named():
    model = two_layers()
    optimizer = sgd(model)
    regrow.attach(model, optimizer, DeepR(sparsity=0.5, temperature=lambda step: 1e-3 * (1 - step)))
    train(model, optimizer)
    with pytest.raises(ValueError, match="at step 2; it must not fall below 0"):
        train(model, optimizer)


def test_a_parameter_that_was_taken_out_of_the_optimizer_is_told():
    model = two_layers()
    optimizer = sgd(model)
    regrow.attach(model, optimizer, DeepR(sparsity=0.5))
    train(model, optimizer)
    del optimizer.param_groups[0]["params"][0]
    with pytest.raises(RuntimeError, match=r"SGD does not hold 0\.weight any more, which it trained sparsely"):
        train(model, optimizer)
