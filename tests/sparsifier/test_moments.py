"""attach(moments=...): what it is for, and what is refused before anything is changed."""

import copy

import pytest
import torch
from torch import nn, optim

import regrow
from every_method import EVERY_STEP, can_be_packed
from regrow.testing import check_method

KINDS = ("aged", "informed")


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))


def adam(parameters):
    return optim.Adam(parameters, lr=0.01)


def refused(message, method=None, make=adam, **options):
    model = two_layers()
    optimizer = make(model.parameters())
    before, num_states = copy.deepcopy(model.state_dict()), len(optimizer.state)
    with pytest.raises(ValueError, match=message):
        regrow.attach(model, optimizer, method or regrow.SET(sparsity=0.9), **options)
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    assert len(optimizer.state) == num_states
    regrow.attach(model, optimizer, regrow.SET(sparsity=0.9))


@pytest.mark.parametrize("how", KINDS)
def test_an_optimizer_without_a_second_moment_is_refused(how):
    def sgd(parameters):
        return optim.SGD(parameters, lr=0.1, momentum=0.9)

    message = f"moments='{how}' is for optimizers that keep a mean of squared gradients, .*SGD keeps none"
    refused(message, make=sgd, moments=how)


def test_a_sum_of_squares_has_no_age():
    refused("Adagrad adds them up without end; use moments=.informed.", make=optim.Adagrad, moments="aged")


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda p: optim.RMSprop(p, momentum=0.9), "momentum_buffer"), (optim.Adadelta, "acc_delta")],
)
def test_what_an_optimizer_keeps_of_updates_is_not_corrected_by_half(make, name):
    refused(f"has '{name}', too; use moments=.informed.", make=make, moments="aged")


def test_other_words_are_refused():
    refused('moments must be "clean", "aged" or "informed", got .old.', moments="old")


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", EVERY_STEP)
def test_a_method_that_rewires_in_every_step_is_refused(name, how):
    why = "keeps the moments of every" if "dense_step" in regrow.METHODS[name].needs else "rewires in every step"
    refused(f"{name} {why}", regrow.METHODS[name](sparsity=0.9), moments=how)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", sorted(name for name, cls in regrow.METHODS.items() if not cls.rewires))
def test_where_nothing_grows_it_changes_nothing(name, how):
    weights = []
    for moments in ("clean", how):
        model = two_layers()
        optimizer = adam(model.parameters())
        sparse = regrow.attach(model, optimizer, regrow.METHODS[name](sparsity=0.9), moments=moments)
        for _ in range(3):
            model(torch.ones(4, 20)).square().sum().backward()
            optimizer.step()
        assert "grown_at" not in sparse.state_dict().get("beside", {})
        weights.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *weights))


def test_a_state_with_ages_and_one_without_are_not_mixed_up():
    runs = {}
    for moments in ("clean", "aged", "informed"):
        model = two_layers()
        runs[moments] = regrow.attach(model, adam(model.parameters()), regrow.SET(sparsity=0.9), moments=moments)
        assert runs[moments].moments == moments
    clean, aged, informed = (runs[moments].state_dict() for moments in runs)
    with pytest.raises(ValueError, match=r"was saved with moments=.aged., and this sparsifier has moments='clean'"):
        runs["clean"].load_state_dict(aged)
    with pytest.raises(ValueError, match=r"was saved without moments=.aged., and this sparsifier has moments='aged'"):
        runs["aged"].load_state_dict(clean)
    model = two_layers()
    with pytest.raises(ValueError, match=r"was saved without moments=.aged."):
        regrow.attach(model, adam(model.parameters()), regrow.SET(sparsity=0.9), moments="aged", resume=clean)
    runs["informed"].load_state_dict(clean)
    runs["clean"].load_state_dict(informed)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", sorted(regrow.METHODS.keys() - EVERY_STEP))  # of which those are refused
def test_every_method_conforms_with_other_moments(name, how):
    method = regrow.METHODS[name](sparsity=0.8)
    check_method(method, storage="packed" if can_be_packed(method) and how == "informed" else "dense", moments=how)


def test_groups_with_other_settings_are_corrected_by_their_own():
    model = two_layers()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "betas": (0.5, 0.75)}]
    optimizer = optim.AdamW(groups, lr=0.01)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=3), moments="aged")
    for _ in range(9):
        model(torch.randn(4, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        regrow.testing.check_invariants(model, optimizer, sparse)
