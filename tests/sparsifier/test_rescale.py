"""attach(rescale="density"): first weights that keep signals as large as in the dense network."""

import copy

import pytest
import torch
from torch import nn

import regrow
from two_layers import sgd, train, two_layers


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_the_active_weights_of_each_layer_are_multiplied_by_the_inverse_root_of_its_density(storage):
    model = two_layers()
    drawn = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    method = regrow.Static(sparsity=0.84, distribution={"0.weight": 0.91})  # 54 of 600 weights, so 90 of 300
    sparse = regrow.attach(model, sgd(model), method, storage=storage, rescale="density")
    assert [layer.active for layer in sparse.layers] == [54, 90]
    masks = sparse.masks()
    sparse.detach()
    weights = dict(model.named_parameters())
    for name, density in {"0.weight": 0.09, "2.weight": 0.3}.items():
        assert torch.equal(weights[name], drawn[name].mul(density**-0.5) * masks[name])
    assert torch.equal(weights["0.bias"], drawn["0.bias"])


def test_it_is_done_once():
    model = two_layers()
    optimizer = sgd(model)
    regrow.attach(model, optimizer, regrow.SET(sparsity=0.9, period=1), rescale="density")
    first = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = {name: own != 0 for name, own in model.state_dict().items()}
    assert all(torch.equal(own[kept[name]], first[name][kept[name]]) for name, own in model.state_dict().items())


@pytest.mark.parametrize("granularity", ["weight", "channel"])
def test_a_coarse_layer_has_a_density_too(granularity):
    model = two_layers()
    first = model[0].weight.detach().clone()
    method = regrow.SET(sparsity=0.5, granularity=granularity, distribution={"0.weight": 0.5})
    mask = regrow.attach(model, sgd(model), method, rescale="density").masks()["0.weight"]
    assert torch.equal(model[0].weight.detach()[mask], first[mask] * 2**0.5)


def test_where_nothing_is_missing_nothing_changes():
    for method in (regrow.Dense(), regrow.Gradual(sparsity=0.9), regrow.Hashed(sparsity=0.9)):
        plain, scaled = two_layers(), two_layers()
        for model, rescale in ((plain, None), (scaled, "density")):
            regrow.attach(model, sgd(model), method, rescale=rescale)
        pairs = zip(plain.state_dict().values(), scaled.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_a_run_that_goes_on_keeps_its_weights():
    model = two_layers()
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.9, period=2), rescale="density")
    train(model, optimizer, 3)
    weights, state = copy.deepcopy(model.state_dict()), sparse.state_dict()
    other = two_layers()
    other.load_state_dict(weights)
    regrow.attach(other, sgd(other), regrow.SET(sparsity=0.9, period=2), rescale="density", resume=state)
    assert all(torch.equal(own, weights[name]) for name, own in other.state_dict().items())


def test_values_that_never_were_dense_are_scaled_too():
    outcomes = []
    for rescale in (None, "density"):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        regrow.attach(model, optimizer, regrow.Static(sparsity=0.75), storage="packed", rescale=rescale)
        outcomes.append(model.packed_values.detach())
    assert torch.equal(outcomes[1], 2 * outcomes[0])


def test_signals_of_a_deep_network_without_norms_neither_vanish_nor_explode():
    @torch.no_grad()
    def outputs(rescale):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
        for layer in model:
            nn.init.normal_(layer.weight, std=256**-0.5)
        x = torch.randn(64, 256)
        dense = model(x).std()
        regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9), rescale=rescale)
        return float(model(x).std() / dense)

    assert outputs(None) < 1e-3  # about 0.1 ** (8 / 2)
    assert 0.5 < outputs("density") < 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rescale": "fan_in"}, "rescale must be None or \"density\", got 'fan_in'"),
        ({"rescale": True}, 'rescale must be None or "density", got True'),
        ({"rescale": "density", "start": "magnitude"}, "rescale is for weights as they were drawn"),
    ],
)
def test_what_makes_no_sense_is_refused_with_nothing_changed(given, sentence):
    model = two_layers()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=sentence):
        regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9), **given)
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
