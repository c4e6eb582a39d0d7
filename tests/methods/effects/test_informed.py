"""Second moments of grown weights that begin at the mean of their layer's."""

import pytest
import torch
from torch import nn, optim

import regrow
from any_training import OPTIMIZERS


def rewired(make, storage="dense", moments="informed"):
    """Two layers of one group after a rewiring; the second one has gradients three times as large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 4, bias=False))
    optimizer = make(model.parameters())
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=2), storage=storage, moments=moments)
    before = sparse.masks()
    for _ in range(2):
        sizes = [1.0] * 24 + [3.0] * 12
        if storage == "dense":
            model[0].weight.grad, model[1].weight.grad = torch.ones(6, 8), torch.full((4, 6), 3.0)
        else:
            [values] = model.parameters()
            values.grad = torch.tensor(sizes)
        optimizer.step()
    masks = sparse.masks()
    return sparse, {name: masks[name] & ~own for name, own in before.items()}


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_grown_weights_second_moment_is_the_mean_of_its_layers(storage):
    # After two steps with a gradient of 1 it is 1 - .999^2 = .001999, of a gradient of 3 nine times that.
    sparse, grown = rewired(lambda p: optim.Adam(p, lr=0.01), storage)
    dense = sparse.storage.dense_tensors(sparse.optimizer)
    for name, expected in {"0.weight": 0.001999, "1.weight": 0.017991}.items():
        weight, first, second = dense[name]
        assert grown[name].any()
        assert (weight[grown[name]] == 0).all()
        assert (first[grown[name]] == 0).all()
        assert second[grown[name]].tolist() == pytest.approx([expected] * int(grown[name].sum()), rel=1e-4)
        assert (second[~sparse.masks()[name]] == 0).all()


def test_it_is_the_mean_of_different_ones_whatever_the_storage():
    means = []
    for storage in ("dense", "packed"):
        torch.manual_seed(0)
        model = nn.Linear(16, 16, bias=False)
        optimizer = optim.Adam(model.parameters())
        sparse = regrow.attach(
            model, optimizer, regrow.SET(sparsity=0.5, period=1), storage=storage, moments="informed"
        )
        before = sparse.masks()["weight"]
        (model(torch.linspace(-1, 1, 64).view(4, 16)).square().sum()).backward()
        optimizer.step()
        after = sparse.masks()["weight"]
        *_, second = sparse.storage.dense_tensors(optimizer)["weight"]
        [mean] = set(second[after & ~before].tolist())
        assert mean == pytest.approx(float(second[after & before].mean()), rel=1e-5)
        means.append(mean)
    assert means[0] == pytest.approx(means[1], rel=1e-6)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if not name.startswith("SGD")])
def test_every_optimizer_with_a_second_moment_can_be_informed(name):
    sparse, grown = rewired(OPTIMIZERS[name])
    states = sparse.optimizer.state.values()
    seconds = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
    of_squares = [tensor for state in states for key, tensor in state.items() if key in seconds]
    assert len(of_squares) == (4 if name == "Adam" else 2)
    pairs = zip(of_squares, [own for own in grown.values() for _ in range(len(of_squares) // 2)], strict=True)
    assert all((tensor[own] > 0).all() for tensor, own in pairs)
