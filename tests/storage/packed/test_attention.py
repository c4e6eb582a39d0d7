"""Attention whose projections are packed: what it computes, learns and grows is what dense storage does."""

import copy

import pytest
import torch
from torch import nn

import regrow

KINDS = {
    "in one piece": {},
    "apart": {"kdim": 3, "vdim": 5},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False},
    "with more keys and values": {"add_bias_kv": True, "add_zero_attn": True},
}
STATIC = regrow.Static(sparsity=0.5)


def pair(model, method=STATIC):
    """The same model twice, with an optimizer each: dense with zeros, and packed."""
    torch.manual_seed(0)
    dense = model().double()
    models = dense, copy.deepcopy(dense)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in models]
    sparse = [
        regrow.attach(*both, method, storage=storage)
        for *both, storage in zip(models, optimizers, ("dense", "packed"), strict=True)
    ]
    return models, optimizers, sparse


def read(model, kind):
    """What attention makes of some sequences."""
    generator = torch.Generator().manual_seed(1)
    sizes = 8, kind.get("kdim", 8), kind.get("vdim", 8)
    query, key, value = (torch.randn(4, 4, n, dtype=torch.float64, generator=generator) for n in sizes)
    return model(query, key, value)


@pytest.mark.parametrize("name", KINDS)
def test_projections_are_packed_by_default_and_compute_the_same(name):
    (dense, packed), _, (of_dense, sparse) = pair(lambda: nn.MultiheadAttention(8, 2, **KINDS[name]))
    assert [layer.name for layer in sparse.layers] == [layer.name for layer in of_dense.layers]
    for is_training in (True, False):
        for expected, given in zip(
            read(dense.train(is_training), KINDS[name]), read(packed.train(is_training), KINDS[name]), strict=True
        ):
            torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("method", [regrow.DSR(sparsity=0.5, period=2), regrow.RigL(sparsity=0.5, period=2, until=100)])
@pytest.mark.parametrize("name", KINDS)
def test_training_is_that_of_dense_storage(name, method):
    models, optimizers, sparse = pair(lambda: nn.MultiheadAttention(8, 2, **KINDS[name]), method)
    for _ in range(6):
        for model, optimizer in zip(models, optimizers, strict=True):
            output, weights = read(model, KINDS[name])
            (output.sin().sum() + weights.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    masks, expected = (each.masks() for each in sparse[::-1])
    assert all(torch.equal(mask, expected[layer]) for layer, mask in masks.items())
    sparse[1].detach()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_each_weight_is_made_dense_once_in_a_forward_pass(monkeypatch):
    (_, packed), _, _ = pair(lambda: nn.MultiheadAttention(8, 2))
    places = type(next(iter(packed._expanders.values())).places)
    made, spread = [], places.spread
    monkeypatch.setattr(places, "spread", lambda own, values: made.append(own.layer.name) or spread(own, values))
    read(packed, {})
    assert sorted(made) == ["in_proj_weight", "out_proj.weight"]


@pytest.mark.parametrize("grows", [True, False])
def test_a_transformer_layer_is_as_fast_and_as_right_in_evaluation(grows):
    """Where no gradient is asked for, torch computes the whole layer from its weights at once."""
    models, _, sparse = pair(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    assert "self_attn.in_proj_weight" in [layer.name for layer in sparse[1].layers]
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with torch.set_grad_enabled(grows):
        expected, given = (model.eval()(x) for model in models)
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch._dynamo.reset()
    (dense, packed), _, _ = pair(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0))
    compiled = torch.compile(packed, backend=backend, fullgraph=True)
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    expected, given = dense(x), compiled(x)
    torch.testing.assert_close(given, expected)
    for y in (expected, given):
        y.sin().sum().backward()
    torch.testing.assert_close(packed.norm1.weight.grad, dense.norm1.weight.grad)
    assert packed.packed_values.grad.abs().sum() > 0


def test_a_copy_and_a_state_have_the_projections():
    (_, packed), _, (_, sparse) = pair(lambda: nn.MultiheadAttention(8, 2), regrow.SET(sparsity=0.5))
    twin = copy.deepcopy(packed)
    assert torch.equal(twin.in_proj_weight, packed.in_proj_weight)
    sparse.detach()
    assert torch.equal(packed.in_proj_weight, twin.in_proj_weight)
    assert type(packed) is nn.MultiheadAttention
