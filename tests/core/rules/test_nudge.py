"""Nudge: what a method adds to an ordinary step."""

import pytest
import torch

from regrow.core import random
from regrow.core.rules import nudge


def test_l1_pulls_every_active_weight_towards_zero_by_the_same_amount():
    weights = torch.tensor([0.9, -0.1, 0.0, -0.2, 0.3, 0.0, 0.05, -0.6])
    gradient = torch.full((8,), 1.0)
    nudge.pull_to_zero([gradient], [weights], 0.25, None)
    assert gradient.tolist() == [1.25, 0.75, 1.0, 0.75, 1.25, 1.0, 1.25, 0.75]
    assert weights[0] == torch.tensor(0.9)


def test_l1_acts_on_every_layer():
    gradients = [torch.zeros(2), torch.zeros(1, dtype=torch.float64)]
    nudge.pull_to_zero(gradients, [torch.tensor([1.0, -1.0]), torch.tensor([2.0]).double()], 0.5, None)
    assert [gradient.tolist() for gradient in gradients] == [[0.5, -0.5], [0.5]]


def test_l1_is_scaled_like_the_gradient_it_joins():
    # A loss scaled by 1024 has gradients 1024 times as large, to be divided again later.
    gradient = torch.zeros(2)
    nudge.pull_to_zero([gradient], [torch.tensor([1.0, -1.0])], 0.5, torch.tensor(1024.0))
    assert (gradient / 1024).tolist() == [0.5, -0.5]


def test_drift_is_towards_zero_from_either_side():
    signs = torch.tensor([True, False])
    step = nudge.drift_and_noise(signs, torch.zeros(2), rates=0.5, l1=0.25, temperature=0.0)
    assert step.tolist() == [-0.125, 0.125]


def test_noise_has_the_spread_of_the_random_walk():
    # sqrt(2 rate T) = sqrt(2 * 0.5 * 0.25) = 0.5
    noise = torch.tensor([1.0, -2.0])
    step = nudge.drift_and_noise(torch.tensor([True, True]), noise, rates=0.5, l1=0.0, temperature=0.25)
    assert step.tolist() == [0.5, -1.0]


def test_each_weight_may_have_a_rate_of_its_own():
    rates = torch.tensor([0.5, 2.0])
    step = nudge.drift_and_noise(torch.tensor([True, False]), torch.ones(2), rates, l1=0.25, temperature=1.0)
    assert step.tolist() == pytest.approx([1 - 0.125, 2 + 0.5])


def test_a_rate_of_nothing_moves_nothing():
    step = nudge.drift_and_noise(torch.tensor([True, False]), torch.ones(2), rates=0.0, l1=1.0, temperature=1.0)
    assert step.tolist() == [0, 0]


def test_the_walk_has_variance_two_rate_temperature():
    noise = random.normal(random.key(0, 1), torch.arange(1 << 16))
    step = nudge.drift_and_noise(torch.ones(1 << 16).bool(), noise, rates=0.1, l1=0.0, temperature=1e-3)
    assert step.var().item() == pytest.approx(2 * 0.1 * 1e-3, rel=0.03)
