"""Packed storage: how it is saved, copied, and taken off again."""

import copy
import io
import pickle

import pytest
import torch
from safetensors import safe_open
from test_packed import METHODS, Run, assert_same, two_groups
from test_resume import same
from torch import nn

import regrow
from regrow.size import count_flops, size_of


@pytest.mark.parametrize("name", ["DSR", "SET"])
def test_the_order_of_loading_does_not_matter(name):
    first, second = Run(METHODS[name]).train(3), Run(METHODS[name], seed=9)
    second.sparse.load_state_dict(first.sparse.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.model.load_state_dict(first.model.state_dict())
    assert_same(first.train(5), second.train(5))


def test_how_layers_were_computed_is_part_of_the_state():
    run = Run(METHODS["SET"]).train(1)
    told = run.sparse.state_dict()["kernels"]
    assert len(told) == 4
    assert {way for _, way in told} <= {"sparse", "dense"}
    other = Run(METHODS["SET"], seed=1)
    state = run.sparse.state_dict()
    state["kernels"] = tuple((case, "dense") for case, _ in told)
    other.sparse.load_state_dict(state)
    other.train(1)
    assert other.sparse.state_dict()["kernels"] == state["kernels"]


def test_states_of_another_storage_or_topology_are_refused():
    packed, dense = Run(METHODS["SET"]), Run(METHODS["SET"], "dense")
    with pytest.raises(ValueError, match="is one of dense storage"):
        packed.sparse.load_state_dict(dense.sparse.state_dict())
    with pytest.raises(ValueError, match="is one of packed storage"):
        dense.sparse.load_state_dict(packed.sparse.state_dict())
    other = Run(regrow.SET(sparsity=0.8, period=2))
    with pytest.raises(ValueError, match="has a budget of 690 weights, this sparsifier one of 345"):
        packed.sparse.load_state_dict(other.sparse.state_dict())
    state = packed.sparse.state_dict()
    num_first = state["counts"][0]
    state["positions"][:num_first] = state["positions"][:num_first].flip(0)
    with pytest.raises(ValueError, match=r"do not fit layer 0\.weight"):
        packed.sparse.load_state_dict(state)


@pytest.mark.parametrize("name", METHODS)
def test_the_trio_is_copied_together_in_any_order(name):
    run = Run(METHODS[name]).train(3)
    for order in (("model", "optimizer", "sparse"), ("sparse", "optimizer", "model")):
        twin = copy.copy(run)
        copies = copy.deepcopy([getattr(run, part) for part in order])
        for part, made in zip(order, copies, strict=True):
            setattr(twin, part, made)
        assert twin.sparse.storage.packs[0].values is twin.model.packed_values
        original = copy.deepcopy(run.model.state_dict())
        alone = copy.copy(run)
        alone.model, alone.optimizer, alone.sparse = copy.deepcopy((run.model, run.optimizer, run.sparse))
        assert_same(twin.train(3), alone.train(3))
        assert same(original, run.model.state_dict())


def test_a_model_is_copied_and_pickled_with_its_places():
    run = Run(METHODS["DSR"]).train(3)
    run.model(run.images)  # pieces are made, and must not be copied
    buffer = io.BytesIO()
    torch.save(run.model, buffer)
    buffer.seek(0)
    twins = (pickle.loads(pickle.dumps(run.model)), torch.load(buffer, weights_only=False), copy.deepcopy(run.model))
    for twin in twins:
        assert torch.equal(twin(run.images), run.model(run.images))
        twin(run.images).sum().backward()
        assert twin.packed_values.grad is not None


@pytest.mark.parametrize("optimizer", [lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), two_groups])
def test_detach_gives_dense_weights_and_state_back(optimizer):
    run = Run(METHODS["DSR"], optimizer=optimizer).train(5)
    plain = Run(METHODS["DSR"], "dense", optimizer)
    expected, output, masks = run.tensors(), run.model(run.images), run.sparse.masks()
    run.sparse.detach()
    run.sparse.detach()
    assert [name for name, _ in run.model.named_parameters()] == [name for name, _ in plain.model.named_parameters()]
    shapes = [[p.shape for p in group["params"]] for group in run.optimizer.param_groups]
    assert shapes == [[p.shape for p in group["params"]] for group in plain.optimizer.param_groups]
    parameters = dict(run.model.named_parameters())
    for name, (weight, *state) in expected.items():
        assert torch.equal(parameters[name], weight)
        kept = [v for v in run.optimizer.state[parameters[name]].values() if torch.is_tensor(v) and v.ndim]
        assert all(map(torch.equal, kept, state))
        assert len(kept) == len(state)
    torch.testing.assert_close(run.model(run.images), output)
    assert type(run.model[0]) is nn.Conv2d
    assert vars(run.model[0]).keys() == vars(nn.Conv2d(1, 1, 1)).keys()
    run.backward()
    run.optimizer.step()
    assert any((run.model[i].weight[~masks[f"{i}.weight"]] != 0).any() for i in (0, 3, 6, 8))
    regrow.attach(run.model, two_groups(run.model), METHODS["SET"], storage="packed")


def test_an_average_over_training_is_that_of_the_values_while_they_stay_in_place():
    run = Run(METHODS["Static"])
    averaged = torch.optim.swa_utils.AveragedModel(run.model)
    first = run.tensors()["6.weight"][0].clone()
    averaged.update_parameters(run.model)
    run.train(3)
    averaged.update_parameters(run.model)
    expected = (first + run.tensors()["6.weight"][0]) / 2
    torch.testing.assert_close(averaged.module[6].weight.detach(), expected)


# Files


def test_a_packed_model_writes_the_file_that_dense_storage_writes(tmp_path):
    dense, packed = Run(METHODS["DSR"], "dense").train(4), Run(METHODS["DSR"], kernels="dense").train(4)
    with torch.no_grad():  # the same bits, whatever the order of adding was
        for slot, tensors in zip(packed.sparse.storage.slots, packed.tensors().values(), strict=True):
            dict(dense.model.named_parameters())[slot.layer.name].copy_(tensors[0])
    dense.model.load_state_dict(
        {k: v for k, v in packed.model.state_dict().items() if k != "packed_values"}, strict=False
    )
    for run, name in ((dense, "dense"), (packed, "packed")):
        regrow.save(tmp_path / name, run.model, run.sparse)
    one, other = (safe_open(tmp_path / name, framework="pt") for name in ("dense", "packed"))
    assert one.metadata() == other.metadata()
    assert set(one.keys()) == set(other.keys())
    assert all(torch.equal(one.get_tensor(key), other.get_tensor(key)) for key in one.keys())  # noqa: SIM118


@pytest.mark.parametrize("optimizer", [two_groups, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)])
def test_a_file_fills_a_packed_model(tmp_path, optimizer):
    one, other = Run(METHODS["SET"], optimizer=optimizer).train(5), Run(METHODS["SET"], seed=7, optimizer=optimizer)
    regrow.save(tmp_path / "file", one.model, one.sparse)
    other.train(2)
    assert regrow.load(tmp_path / "file", other.model) == {}
    masks = other.sparse.masks()
    assert all(torch.equal(mask, masks[name]) for name, mask in one.sparse.masks().items())
    assert torch.equal(one.model(one.images), other.model(one.images))
    other.train(4)
    assert other.sparse.active == other.sparse.budget


def test_a_file_of_another_budget_is_refused(tmp_path):
    one, other = Run(regrow.SET(sparsity=0.8)), Run(METHODS["SET"])
    regrow.save(tmp_path / "file", one.model)
    with pytest.raises(ValueError, match="has room for"):
        regrow.load(tmp_path / "file", other.model)


def test_a_packed_model_with_tied_layers_is_saved_once(tmp_path):
    from test_packed_layers import Tied, pair

    dense, packed = pair(Tied, "sparse")
    regrow.save(tmp_path / "file", packed)
    state = regrow.load_tensors(tmp_path / "file")
    assert torch.equal(state["second.weight"], dense.second.weight)
    before = packed.packed_values.detach().clone()
    with torch.no_grad():
        packed.packed_values.zero_()
    regrow.load(tmp_path / "file", packed)
    assert torch.equal(packed.packed_values, before)


def test_size_and_operations_are_those_of_dense_storage():
    dense, packed = Run(METHODS["SET"], "dense"), Run(METHODS["SET"])
    masks = dense.sparse.masks()
    assert size_of(packed.model, packed.sparse.masks()) == size_of(packed.model, {}) == size_of(dense.model, masks)
    assert count_flops(packed.model, (3, 6, 6), {}) == count_flops(dense.model, (3, 6, 6), masks)
