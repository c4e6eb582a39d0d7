"""Parameters that share memory without being one are refused; those that only lie side by side are not."""

import pytest
import torch
from torch import nn

import regrow
from two_layers import sgd

SET = regrow.SET(sparsity=0.8, period=2)


def two(first, second):
    """Two linear layers with these weights."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(first), nn.Parameter(second)
    return model


def base():
    torch.manual_seed(0)
    return torch.randn(300)


def tied_by_data():
    model = two(base()[:64].view(8, 8), torch.ones(8, 8))
    model[1].weight.data = model[0].weight.data
    return model


def embedding_tied_by_data():
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight.data = model[0].weight.data
    return model


def with_a_view_of_another_precision():
    memory = base()
    return two(memory[:64].view(8, 8), memory.view(torch.float64)[20:84].view(8, 8))


OVERLAPPING = {
    "tied by .data": tied_by_data,
    "an embedding tied by .data": embedding_tied_by_data,
    "views that overlap": lambda: two((memory := base())[:64].view(8, 8), memory[60:124].view(8, 8)),
    "transposed": lambda: two((memory := base()[:64].view(8, 8)), memory.t()),
    "columns that overlap": lambda: two((memory := base()[:200].view(8, 25))[:, :8], memory[:, 7:15]),
    "another precision": with_a_view_of_another_precision,
}
APART = {
    "one after the other": lambda: two((memory := base())[:64].view(8, 8), memory[64:128].view(8, 8)),
    "columns side by side": lambda: two((memory := base()[:160].view(8, 20))[:, :8], memory[:, 8:16]),
    "every second": lambda: two((memory := base()[:128].view(8, 8, 2))[..., 0], memory[..., 1]),
}


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("make", OVERLAPPING.values(), ids=OVERLAPPING)
def test_two_parameters_over_one_memory_are_refused_by_name(make, storage):
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"(0|1)\.weight and (0|1)\.weight are two parameters over the same memory"):
        regrow.attach(model, sgd(model), SET, storage=storage)
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("make", APART.values(), ids=APART)
def test_parameters_in_one_piece_of_memory_may_lie_side_by_side(make):
    model = make()
    sparse = regrow.attach(model, sgd(model), SET)
    assert [int(layer.weight.count_nonzero()) for layer in model] == [layer.active for layer in sparse.layers]


def test_what_stays_dense_may_share_what_it_likes():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].bias.data = model[0].bias.data
    model[1].weight.data = model[0].weight.data
    regrow.attach(model, sgd(model), SET, layers=["2.weight"])


def test_one_number_for_several_weights_is_refused():
    model = two(torch.randn(8, 1).expand(8, 8), torch.randn(8, 8))
    with pytest.raises(ValueError, match=r"0\.weight has one number in memory for several weights"):
        regrow.attach(model, sgd(model), SET)


def test_tied_parameters_are_one():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    assert [layer.name for layer in regrow.attach(model, sgd(model), SET).layers] == ["0.weight"]
