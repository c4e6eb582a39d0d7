"""Moments that count from a weight's own beginning: worked examples, and what a fresh optimizer would have done."""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

import regrow
from regrow.methods.effects import aged
from regrow.methods.effects.moments import Moments, own_share

ADAM = Moments({"exp_avg": 0.9}, {"exp_avg_sq": 0.999}, frozenset(), is_corrected=True, decays_apart=False)
RMSPROP = Moments({}, {"square_avg": 0.99}, frozenset(), is_corrected=False, decays_apart=False)
LATE = 100_000
"""A step after which the optimizer no longer corrects anything."""


class OneLayer:
    """Eight weights, four of which are active; one is replaced after the second step, late in a training.

    All gradients are 1, and so are the moments of the weights that are there.
    """

    def __init__(self, moments, make, storage="dense"):
        torch.manual_seed(0)
        self.model = nn.Linear(8, 1, bias=False)
        self.optimizer = make(self.model.parameters())
        method = regrow.SET(sparsity=0.5, fraction=1, period=2, until=2)
        self.sparse = regrow.attach(self.model, self.optimizer, method, moments=moments, storage=storage)
        self.step()
        for state in self.optimizer.state.values():
            for name, tensor in state.items():
                tensor.fill_(LATE) if name == "step" else tensor.copy_(tensor != 0)
        before = self.sparse.masks()["weight"]
        self.step()
        [self.grown] = (self.sparse.masks()["weight"] & ~before).flatten().nonzero().flatten().tolist()

    def step(self, gradient=1.0):
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        self.optimizer.step()

    @property
    def weight(self):
        """The one that grew."""
        values = self.sparse.storage.expand(self.sparse.storage.weights)["weight"]
        return float(values.flatten()[self.grown])

    def moves(self, num_steps):
        """How far it goes in each step."""
        found = [self.weight]
        for _ in range(num_steps):
            self.step()
            found.append(self.weight)
        return [before - after for before, after in pairwise(found)]


def adam(parameters):
    return optim.Adam(parameters, lr=1.0)


# By hand


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_clean_weight_goes_six_times_as_far_as_others_at_first(storage):
    # Of a steady gradient of 1 the means are 1 - .9^k and 1 - .999^k, which nothing corrects any more:
    # .1 / sqrt(.001) = 3.16 in the first step, (1 - .2824) / sqrt(.01193) = 6.57 in the twelfth.
    moves = OneLayer("clean", adam, storage).moves(12)
    assert moves[0] == pytest.approx(3.162, rel=1e-3)
    assert moves[11] == pytest.approx(6.569, rel=1e-3)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_an_aged_weight_begins_with_small_steps_and_ends_with_those_of_all(storage):
    # The square is corrected to 1. The mean is (.9 m + .1) k/100, and corrected by 1 - .9^k:
    # .001 / .1, then (.0009 + .1) * .02 = .002018 / .19, then (.0018162 + .1) * .03 = .0030545 / .271.
    moves = OneLayer("aged", adam, storage).moves(160)
    assert moves[:3] == pytest.approx([0.01, 0.010621, 0.011271], rel=1e-3)
    assert max(moves) < 1.001
    assert moves[-1] == pytest.approx(1, rel=2e-3)


def test_own_corrections_alone_take_the_twelfth_step_from_six_to_one(monkeypatch):
    monkeypatch.setattr(aged, "WARM_UP", 1)
    assert OneLayer("aged", adam).moves(12) == pytest.approx([1.0] * 12, rel=1e-3)


def test_an_optimizer_that_corrects_nothing_gets_the_correction_too(monkeypatch):
    # RMSprop's first update is 1 / sqrt(.01) = 10 times what it comes to.
    monkeypatch.setattr(aged, "WARM_UP", 1)
    assert OneLayer("clean", lambda p: optim.RMSprop(p, lr=1.0)).moves(1) == pytest.approx([10], rel=1e-3)
    assert OneLayer("aged", lambda p: optim.RMSprop(p, lr=1.0)).moves(3) == pytest.approx([1] * 3, rel=1e-3)


def test_weights_that_are_there_already_go_on_as_they_were():
    clean, old = (OneLayer(moments, adam) for moments in ("clean", "aged"))
    for run in (clean, old):
        run.moves(5)
    others = [i for i in range(8) if i != clean.grown]
    assert torch.equal(clean.model.weight[0, others], old.model.weight[0, others])


# As the optimizer itself would, had it begun with the weight

CORRECTING = {
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam, fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "Adam, foreach": lambda p: optim.Adam(p, lr=0.01, foreach=True, betas=(0.8, 0.95)),
    "Adam, large eps": lambda p: optim.Adam(p, lr=0.01, eps=0.1),
    "Adam, L2": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "Adam, AMSGrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "AdamW, rate in a tensor": lambda p: optim.AdamW(p, lr=torch.tensor(0.01), weight_decay=0.5),
}


@pytest.mark.parametrize("name", CORRECTING)
def test_without_warm_up_a_grown_weight_trains_as_in_an_optimizer_of_its_own(name, monkeypatch):
    monkeypatch.setattr(aged, "WARM_UP", 1)
    run = OneLayer("aged", CORRECTING[name])
    alone = nn.Parameter(torch.zeros(1))
    own = CORRECTING[name]([alone])
    for step in range(1, 40):
        gradient = 1 + (7 * step) % 5
        run.step(float(gradient))
        alone.grad = torch.full_like(alone, gradient)
        own.step()
        assert run.weight == pytest.approx(alone.item(), rel=1e-4), step


def whole_at(ages, *decays):
    return [1 - decay ** torch.tensor(ages, dtype=torch.float64) for decay in decays]


@settings(deadline=None, max_examples=60)
@given(age=st.integers(1, 5000), later=st.integers(0, 5000), second=st.floats(1e-8, 1e8), eps=st.floats(0, 1))
def test_a_share_turns_the_correction_for_all_into_a_weights_own(age, later, second, eps):
    step = age + later
    share = own_share(ADAM, whole_at([age], 0.9, 0.999), torch.tensor([second]).double(), step, eps)
    root = float(torch.tensor(second)) ** 0.5
    of_all, own = (1 / (1 - 0.9**t) / (root / (1 - 0.999**t) ** 0.5 + eps) for t in (step, age))
    assert float(share) == pytest.approx(own / of_all, rel=1e-4)
    assert later or float(share) == pytest.approx(1)


def beside_a_dense_one(kind, key, values):
    """The weight of a run whose optimizer's setting takes some values, and one that such an optimizer trains alone."""
    run, alone = OneLayer("aged", kind), nn.Parameter(torch.zeros(1))
    own = kind([alone])
    for value in values:
        for optimizer in (run.optimizer, own):
            optimizer.param_groups[0][key] = value
        run.step()
        alone.grad = torch.ones(1)
        own.step()
        yield run.weight, alone.item()


def test_decays_that_change_in_training_are_followed(monkeypatch):
    monkeypatch.setattr(aged, "WARM_UP", 1)
    values = [(0.9, 0.999), (0.8, 0.99), (0.5, 0.9), (0.9, 0.99)]
    for weight, alone in beside_a_dense_one(partial(optim.Adam, lr=0.01), "betas", values):
        assert weight == pytest.approx(alone, rel=1e-4)


def test_a_weight_decay_that_begins_later_is_no_part_of_an_update(monkeypatch):
    monkeypatch.setattr(aged, "WARM_UP", 1)
    kind = partial(optim.AdamW, lr=0.01, weight_decay=0.0)
    for weight, alone in beside_a_dense_one(kind, "weight_decay", [0.0, 0.0, 9.0, 9.0]):
        assert weight == pytest.approx(alone, rel=1e-4)


def test_where_nothing_is_corrected_the_share_is_that_of_the_squares():
    share = own_share(RMSPROP, whole_at([1, 2], 0.0, 0.99), torch.ones(2), None, 0.0)
    assert share.tolist() == pytest.approx([0.1, (1 - 0.99**2) ** 0.5])


# Who is young, and for how long


def test_ages_are_in_the_state_from_the_first_step_on():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = optim.AdamW(model.parameters())
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=3), moments="aged")
    grown_at = sparse.state_dict()["beside"]["grown_at"]["weight"]
    assert torch.equal(grown_at, torch.where(sparse.masks()["weight"], -1, 0))
    for _ in range(7):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    grown_at, mask = sparse.state_dict()["beside"]["grown_at"]["weight"], sparse.masks()["weight"]
    assert (grown_at[~mask] == 0).all()
    assert set(grown_at[mask].tolist()) == {-1, 6}  # those of step 3 were the smallest in step 6


def test_weights_grow_old_and_are_then_left_alone(monkeypatch):
    monkeypatch.setattr(aged, "WARM_UP", 4)
    run = OneLayer("aged", lambda p: optim.Adam(p, lr=1.0, betas=(0.5, 0.5)))
    [effect] = run.sparse._steps._effects
    assert aged.horizon(effect._of_groups[0]) == 7  # .5^7 is less than a hundredth
    young = []
    for _ in range(9):
        young.append(sum(len(own.grown_at) for own in effect._look_up()))
        run.step()
    assert young == [1] * 7 + [0] * 2


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_run_that_is_resumed_while_weights_are_young_goes_on_bit_for_bit(storage):
    run = OneLayer("aged", adam, storage)
    run.moves(5)
    states = copy.deepcopy([run.model.state_dict(), run.optimizer.state_dict(), run.sparse.state_dict()])
    other = OneLayer("aged", adam, storage)
    for own, state in zip((other.model, other.optimizer, other.sparse), states, strict=True):
        own.load_state_dict(state)
    other.grown = run.grown
    assert other.moves(20) == run.moves(20)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_it_does_so_wherever_it_is_resumed_between_two_rewirings(storage, monkeypatch):
    """Where some have grown old since the one and others have not."""
    monkeypatch.setattr(aged, "WARM_UP", 4)
    images = torch.randn(50, 4, 16, generator=torch.Generator().manual_seed(1))

    def beginning():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5))
        optimizer = optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.7))  # old after 13 steps
        method = regrow.SET(sparsity=0.5, period=5)
        return model, optimizer, regrow.attach(model, optimizer, method, moments="aged", storage=storage)

    def train(trio, first, last):
        model, optimizer, _ = trio
        for own in images[first:last]:
            model(own).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    whole = train(beginning(), 0, 50)
    for cut in range(30, 36):
        first, second = beginning(), beginning()
        train(first, 0, cut)
        for own, other in zip(first, second, strict=True):
            other.load_state_dict(own.state_dict())
        assert all(map(torch.equal, train(second, cut, 50), whole)), cut


def test_a_parameter_that_takes_no_part_in_a_step_stays_where_it_is():
    run = OneLayer("aged", lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.5))
    run.moves(3)
    before = run.weight
    run.model.weight.grad = None
    run.optimizer.step()
    assert run.weight == before


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("granularity", ["weight", "kernel", "channel"])
def test_coarse_units_and_other_memory_formats_age_too(granularity, memory_format):
    torch.manual_seed(0)
    model = nn.Conv2d(4, 8, 3).to(memory_format=memory_format)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    method = regrow.SET(sparsity=0.5, period=2, granularity=granularity)
    sparse = regrow.attach(model, optimizer, method, moments="aged")
    for _ in range(6):
        model(torch.randn(2, 4, 5, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        regrow.testing.check_invariants(model, optimizer, sparse)
    grown_at, mask = sparse.state_dict()["beside"]["grown_at"]["weight"], sparse.masks()["weight"]
    assert set(grown_at[mask].tolist()) == {-1, 6}
