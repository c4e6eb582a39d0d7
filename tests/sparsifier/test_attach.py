"""attach: what it does to a model, and what it returns."""

import copy

import pytest
import torch

import regrow
from two_layers import sgd, train, two_layers


def test_the_network_is_sparse_at_once_and_the_budget_is_exact():
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9))
    assert sparse.budget == sparse.active == round(0.1 * 900) == 90
    assert sparse.sparsity == 1 - 90 / 900
    assert sum(int((p != 0).sum()) for name, p in model.named_parameters() if "weight" in name) == 90
    assert [(layer.name, layer.shape, layer.active) for layer in sparse.layers] == [
        ("0.weight", (30, 20), 60),
        ("2.weight", (10, 30), 30),
    ]
    assert sparse.history == []


def test_what_comes_back_says_what_it_is():
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9))
    assert repr(sparse) == "<Sparsifier DSR, step 0: 90 of 900 weights in 2 layers>"
    assert [layer.density for layer in sparse.layers] == [0.1, 0.1]


def test_nothing_of_the_users_is_replaced_or_renamed():
    model = two_layers()
    optimizer = sgd(model)
    names, parameters, step = list(model.state_dict()), list(model.parameters()), type(optimizer).step
    regrow.attach(model, optimizer, regrow.SET(sparsity=0.9))
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert type(optimizer).step is step
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_the_users_own_random_numbers_are_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    model = two_layers()
    torch.manual_seed(1)
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, period=1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert sparse.history
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_decides_the_topology():
    masks = []
    for seed in (0, 0, 1):
        model = two_layers()
        masks.append(regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9), seed=seed).masks()["0.weight"])
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_start_by_magnitude_keeps_the_largest_weights_of_each_layer():
    model = two_layers()
    trained = copy.deepcopy(model)
    sparse = regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9), start="magnitude")
    for layer in sparse.layers:
        weight = dict(trained.named_parameters())[layer.name].detach()
        bound = weight.abs().flatten().topk(layer.active).values.min()
        assert torch.equal(sparse.masks()[layer.name], weight.abs() >= bound)
        assert torch.equal(
            dict(model.named_parameters())[layer.name][weight.abs() >= bound], weight[weight.abs() >= bound]
        )


def test_given_masks_define_the_budget():
    first = two_layers()
    masks = regrow.attach(first, sgd(first), regrow.Static(sparsity=0.95), seed=7).masks()
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.5, period=1), start=masks)
    assert sparse.budget == 45
    assert all(torch.equal(mask, masks[name]) for name, mask in sparse.masks().items())
    train(model, sparse.optimizer, 3)
    assert sparse.active == 45


def test_masks_are_copies():
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9))
    sparse.masks()["0.weight"].fill_(True)
    assert sparse.masks()["0.weight"].sum() == 60


def test_callbacks_hear_of_every_rewiring():
    model = two_layers()
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, period=2))
    heard = []

    @sparse.on_rewire
    def listen(record):
        heard.append(record)

    train(model, optimizer, 5)
    assert [record.step for record in heard] == [2, 4]
    assert heard == sparse.history
    assert heard[0].threshold == 1e-3


def test_callbacks_may_edit_weights():
    model = two_layers()
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, period=2))
    sparse.on_rewire(lambda record: [parameter.clamp_(-0.01, 0.01) for parameter in model.parameters()])
    train(model, optimizer, 2)
    assert all((parameter.abs() <= 0.01).all() for parameter in model.parameters())


def test_weights_move_between_layers_while_the_budget_stands_still():
    """The first layer's weights are tiny and hopeless; DSR gives its budget to the second."""
    model = two_layers()
    with torch.no_grad():
        model[0].weight *= 1e-3
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.8, prune=40, period=1, threshold=1e-2))
    at_first = {layer.name: layer.active for layer in sparse.layers}
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert sparse.active == sparse.budget == 180
    now = {layer.name: layer.active for layer in sparse.layers}
    assert now["2.weight"] > at_first["2.weight"]
    told = {
        name: at_first[name] + sum(record.grown[name] - record.pruned[name] for record in sparse.history)
        for name in now
    }
    assert told == now, "the history says where the weights went"


def test_the_summary_names_method_layers_and_totals():
    model = two_layers()
    text = regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9)).summary()
    assert text.splitlines()[0] == "SET, step 0, budget 90"
    assert "0.weight  30x20      600      60    0.9000" in text
    assert text.splitlines()[-2].split() == ["total", "900", "90", "0.9000"]
    assert text.splitlines()[-1] == "left dense: 2 tensors, 40 weights (largest: 0.bias)"


def test_detach_leaves_an_ordinary_model_and_optimizer():
    model = two_layers()
    optimizer = sgd(model, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9))
    train(model, optimizer)
    mask = sparse.masks()["0.weight"]
    sparse.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert (model[0].weight[~mask] == 0).all()
    train(model, optimizer)
    assert (model[0].weight[~mask] != 0).any()
    with pytest.raises(RuntimeError, match="was detached"):
        sparse.advance()
    regrow.attach(model, optimizer, regrow.SET(sparsity=0.9))


def test_a_model_copied_alone_is_a_plain_model():
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9))
    twin = copy.deepcopy(model)
    optimizer = sgd(twin)
    train(twin, optimizer)
    assert (twin[0].weight[~sparse.masks()["0.weight"]] != 0).any()


def test_the_trio_is_copied_together_in_any_order():
    model = two_layers()
    optimizer = sgd(model, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, period=1))
    train(model, optimizer, 2)
    for first, second, third in (
        copy.deepcopy((model, optimizer, sparse)),
        copy.deepcopy((sparse, optimizer, model))[::-1],
    ):
        assert third.optimizer is second
        assert third.storage.parameters[0] is first[0].weight
        before = sparse.num_steps
        train(first, second)
        assert third.num_steps == before + 1
        assert sparse.num_steps == before, "the original does not move"


def test_optimizer_state_from_before_is_cleared_where_weights_are_inactive():
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 2)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=0.9))
    mask = sparse.masks()["0.weight"]
    for moment in ("exp_avg", "exp_avg_sq"):
        assert (optimizer.state[model[0].weight][moment][~mask] == 0).all()
        assert (optimizer.state[model[0].weight][moment][mask] != 0).any()
