"""Hashed: how a model that shares values is saved, copied and taken off again."""

import copy
import io
import pickle

import pytest
import torch
from test_hashed import attached, sgd, train
from torch import nn

import regrow


def test_a_loaded_state_brings_its_seed_and_so_its_hash():
    model, _, sparse = attached(seed=3)
    other, _, loaded = attached(seed=4)
    other.load_state_dict(model.state_dict())
    assert not torch.equal(other[0].weight, model[0].weight)
    loaded.load_state_dict(sparse.state_dict())
    assert torch.equal(other[0].weight, model[0].weight)


def test_a_state_with_other_numbers_of_values_is_refused():
    _, _, sparse = attached()
    _, _, other = attached(regrow.Hashed(sparsity=0.9, distribution="er"))
    with pytest.raises(ValueError, match="other numbers of shared values"):
        other.load_state_dict(sparse.state_dict())


def test_the_trio_is_copied_together_in_any_order():
    model, optimizer, sparse = attached(make_optimizer=lambda model: sgd(model, momentum=0.9))
    train(model, optimizer, 2)
    before = model[0].weight.detach().clone()
    for first, second, third in (
        copy.deepcopy((model, optimizer, sparse)),
        copy.deepcopy((sparse, optimizer, model))[::-1],
    ):
        assert third.storage.parameters[0] is first[0]._parameters["weight"]
        train(first, second)
        assert (third.num_steps, sparse.num_steps) == (3, 2)
        assert torch.equal(model[0].weight, before)
        third.detach()
        assert isinstance(first[0].weight, nn.Parameter)
    assert torch.equal(model[0].weight, before)


def test_a_model_is_pickled_with_its_hash():
    model, _, _ = attached()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    x = torch.randn(3, 20)
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False), copy.deepcopy(model)):
        assert torch.equal(twin(x), model(x))


def test_detach_leaves_dense_weights_and_an_ordinary_optimizer():
    model, optimizer, sparse = attached(make_optimizer=lambda model: sgd(model, momentum=0.9))
    train(model, optimizer, 2)
    x = torch.randn(3, 20)
    outputs, weight, state = model(x), model[0].weight.detach(), sparse.state_dict()
    sparse.detach()
    sparse.detach()
    assert type(model[0]) is nn.Linear
    assert vars(model[0]).keys() == vars(nn.Linear(2, 2)).keys()
    assert torch.equal(model[0].weight, weight)
    assert torch.equal(model(x), outputs)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    assert not optimizer._optimizer_step_pre_hooks
    assert sparse.state_dict() == state
    train(model, optimizer)
    assert model[0].weight.unique().numel() > 2 * 60, "positions go their own ways"
    twin, _, _ = copy.deepcopy((model, optimizer, sparse))
    assert torch.equal(twin[0].weight, model[0].weight)
    regrow.attach(model, sgd(model), regrow.Hashed(sparsity=0.5))


def test_moving_to_another_dtype_is_followed():
    model, optimizer, _ = attached()
    model.double()
    model(torch.ones(4, 20).double()).sum().backward()
    optimizer.step()
    assert model[0].weight.dtype == torch.float64
