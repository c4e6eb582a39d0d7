"""Hashed: what attach puts in the place of weights, and what it refuses."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from regrow.size import Size, count_flops, size_of
from two_layers import sgd, train, two_layers


def attached(method=None, make_optimizer=sgd, **options):
    model = two_layers()
    optimizer = make_optimizer(model)
    return model, optimizer, regrow.attach(model, optimizer, method or regrow.Hashed(sparsity=0.9), **options)


# What attach does


def test_seeds_and_layers_hash_differently():
    model, _, sparse = attached(seed=0)
    other, _, _ = attached(seed=1)
    keys = [sharing.key for sharing in sparse.storage._sharings]
    assert len(set(keys)) == 2
    assert not torch.equal(model[0].weight, other[0].weight)


def test_the_expanded_layer_keeps_its_standard_deviation():
    torch.manual_seed(0)
    model = nn.Linear(500, 400)
    before = model.weight.std().item()
    regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.9))
    assert model.weight.std().item() == pytest.approx(before, rel=0.02)
    outputs = nn.functional.linear(torch.randn(200, 500), model.weight)
    assert outputs.std().item() == pytest.approx(before * math.sqrt(500), rel=0.1)


def test_parameter_gradient_and_optimizer_state_have_budget_size():
    model, optimizer, sparse = attached(make_optimizer=lambda model: torch.optim.Adam(model.parameters()))
    assert sparse.budget == sparse.active == 90
    assert [(layer.name, layer.shape, layer.active) for layer in sparse.layers] == [
        ("0.weight", (30, 20), 60),
        ("2.weight", (10, 30), 30),
    ]
    assert sparse.sparsity == 0.9
    assert (sparse.masks(), sparse.history) == ({}, [])
    assert sparse.summary().splitlines()[0] == "Hashed, step 0, budget 90"
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    values = dict(model.named_parameters())["0.weight"]
    assert values.shape == values.grad.shape == optimizer.state[values]["exp_avg"].shape == (60,)
    assert model[0].weight.shape == (30, 20)
    assert sparse.num_steps == 1


def test_names_stay_and_so_do_biases_and_norms():
    model = two_layers()
    names, biases = list(model.state_dict()), [model[0].bias, model[2].bias]
    regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.9))
    assert list(model.state_dict()) == names
    assert model[0].bias is biases[0]
    assert model[2].bias is biases[1]
    assert isinstance(model[0], nn.Linear)
    assert repr(model[0]) == "HashedLinear(in_features=20, out_features=30, bias=True)"


@given(st.floats(0, 0.95), st.sampled_from(["uniform", "er", "erk"]), st.integers(0, 2**40))
@settings(deadline=None, max_examples=30)
def test_the_budget_is_exact(sparsity, distribution, seed):
    model = two_layers()
    method = regrow.Hashed(sparsity=sparsity, distribution=distribution)
    sparse = regrow.attach(model, sgd(model), method, seed=seed)
    assert sparse.budget == sparse.active == round((1 - sparsity) * 900)
    assert sum(p.numel() for name, p in model.named_parameters() if "weight" in name) == sparse.budget
    assert all(layer.active >= 1 for layer in sparse.layers)


def test_values_take_the_place_of_weights_in_their_group():
    model = two_layers()
    groups = [
        {"params": [model[0].bias, model[2].weight, model[2].bias], "lr": 0.5},
        {"params": [model[0].weight], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    regrow.attach(model, optimizer, regrow.Hashed(sparsity=0.9))
    named = dict(model.named_parameters())
    wanted = [["0.bias", "2.weight", "2.bias"], ["0.weight"]]
    for group, names in zip(optimizer.param_groups, wanted, strict=True):
        assert [id(p) for p in group["params"]] == [id(named[name]) for name in names]
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["weight_decay"]) == (0.5, 0.1)
    train(model, optimizer)
    scheduler.step()


def test_state_that_is_there_from_the_beginning_changes_its_shape():
    model, optimizer, sparse = attached(
        make_optimizer=lambda model: torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.25)
    )
    values = dict(model.named_parameters())["0.weight"]
    assert torch.equal(optimizer.state[values]["sum"], torch.full((60,), 0.25))
    train(model, optimizer)
    sparse.detach()
    assert torch.equal(optimizer.state[model[0].weight]["sum"], torch.full((30, 20), 0.25))
    assert optimizer.state[model[0].weight]["step"] == 0
    train(model, optimizer)


def test_tied_weights_are_hashed_once():
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.Hashed(sparsity=0.9))
    assert [layer.name for layer in sparse.layers] == ["0.weight"]
    assert torch.equal(first.weight, second.weight)
    model(torch.ones(2, 12)).sum().backward()
    optimizer.step()
    assert torch.equal(first.weight, second.weight)
    sparse.detach()
    assert first.weight is second.weight


def test_frozen_weights_and_attention_projections_stay_dense():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.frozen = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)
            self.frozen.weight.requires_grad_(False)

        def forward(self, x):
            return self.frozen(self.attention(x, x, x)[0])

    model = Attending()
    with pytest.warns(UserWarning, match="192 of 256 weights in matrices stay dense"):
        sparse = regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.5))
    assert [layer.name for layer in sparse.layers] == ["attention.out_proj.weight"]
    for is_training in (True, False):
        assert model.train(is_training)(torch.randn(3, 1, 8)).shape == (3, 1, 8)


def test_channels_last_weights_stay_so_and_share_alike():
    expanded = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(4, 6, 3).to(memory_format=layout)
        regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.8))
        assert model.weight.is_contiguous(memory_format=layout)
        model(torch.ones(1, 4, 5, 5)).square().sum().backward()
        expanded.append((model.weight.detach(), model._parameters["weight"].grad))
    assert torch.equal(expanded[0][0], expanded[1][0])
    torch.testing.assert_close(expanded[0][1], expanded[1][1])


def test_l1_pulls_at_values():
    model, optimizer, _ = attached(regrow.Hashed(sparsity=0.9, l1=0.5))
    values = model[0]._parameters["weight"]
    before = values.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(values.detach(), before - 0.1 * 0.5 * before.sign())


def test_the_size_is_that_of_the_values_and_the_operations_are_dense():
    model, _, sparse = attached()
    size = size_of(model, sparse.masks())
    assert size == Size(dense=40, active=90, positions=0)
    assert size.bits == 32 * 130
    assert count_flops(model, (20,), sparse.masks()) == 2 * 900


# What it refuses


def trained_with_momentum():
    model = two_layers()
    optimizer = sgd(model, momentum=0.9)
    train(model, optimizer)
    return model, optimizer


def wrapped():
    model = nn.DataParallel(two_layers())
    return model, sgd(model)


def recurrent():
    model = nn.LSTM(4, 4)
    return model, sgd(model)


def fresh():
    model = two_layers()
    return model, sgd(model)


REFUSED = {
    "a trained optimizer": (trained_with_momentum, {}, "attach right after building the optimizer"),
    "magnitude": (fresh, {"start": "magnitude"}, 'start="random"'),
    "masks": (fresh, {"start": {"0.weight": torch.ones(30, 20).bool()}}, 'start="random"'),
    "a wrapper": (wrapped, {}, "before wrapping it in DistributedDataParallel"),
    "recurrent layers": (recurrent, {"layers": ["weight_hh_l0"]}, "recurrent layers"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_bad_input_gets_one_sentence_before_anything_was_changed(what):
    make, options, sentence = REFUSED[what]
    model, optimizer = make()
    before = [id(p) for p in model.parameters()]
    with pytest.raises(ValueError, match=sentence):
        regrow.attach(model, optimizer, regrow.Hashed(sparsity=0.9), **options)
    assert [id(p) for p in model.parameters()] == [id(p) for p in optimizer.param_groups[0]["params"]] == before
    assert type(next(model.modules())) in (nn.Sequential, nn.DataParallel, nn.LSTM)


def test_attention_alone_has_nothing_to_hash_unless_named():
    model = nn.MultiheadAttention(8, 2)
    model.out_proj.weight.requires_grad_(False)
    for layers in (None, ["in_proj_weight"]):
        with pytest.raises(ValueError, match="input projections of attention stay dense"):
            regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.5), layers=layers)


def test_a_hashed_model_is_not_attached_again():
    model, optimizer, sparse = attached()
    with pytest.raises(ValueError, match="already attached"):
        regrow.attach(model, optimizer, regrow.SET(sparsity=0.9))
    alone = copy.deepcopy(model)
    with pytest.raises(ValueError, match="this model is hashed"):
        regrow.attach(alone, sgd(alone), regrow.SET(sparsity=0.5))
    del sparse
