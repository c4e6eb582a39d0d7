"""What the first versions wrote loads for ever: checkpoints train on as they would have, files give the same models."""

import copy

import pytest
import torch

import regrow
from tests.fixtures.version_1.network import (
    CASES,
    FOLDER,
    NUM_STEPS_AFTER,
    NUM_STEPS_BEFORE,
    Training,
    make_model,
    make_tied,
    read,
)

ORDERS = (("model", "optimizer", "sparse"), ("sparse", "optimizer", "model"))


@pytest.fixture(autouse=True)
def one_thread():
    """As the fixtures were written; and where other tests run beside, two would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def resume(name, order=ORDERS[0]):
    """A fresh training, with another seed, that was given the states of a checkpoint."""
    if CASES[name].is_gone:
        pytest.skip(f"{CASES[name].kind} was deleted")
    training = Training(CASES[name], seed=6, num_steps=NUM_STEPS_BEFORE)
    saved = read(name)
    for part in order:
        getattr(training, part).load_state_dict(saved[part])
    return training, saved["outcome"]


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("order", ORDERS, ids=["model first", "sparsifier first"])
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_trains_on_as_it_would_have(name, order):
    training, expected = resume(name, order)
    training.train(NUM_STEPS_AFTER)
    found = training.outcome()
    assert same(found["masks"], expected["masks"])
    assert found["history"] == expected["history"]
    torch.testing.assert_close(found["model"], expected["model"])


@pytest.mark.parametrize("name", CASES)
def test_what_was_loaded_can_be_saved_and_loaded_again(name):
    training, expected = resume(name)
    again = Training(CASES[name], seed=7, num_steps=NUM_STEPS_BEFORE)
    for part in ORDERS[0]:
        getattr(again, part).load_state_dict(getattr(training, part).state_dict())
    again.train(NUM_STEPS_AFTER)
    found = again.outcome()
    assert same(found["masks"], expected["masks"])
    torch.testing.assert_close(found["model"], expected["model"])


@pytest.mark.parametrize("name", ["file_dense", "file_packed", "file_half"])
def test_a_file_fills_a_plain_model(name):
    model, expected = make_model(), read(name)
    masks = regrow.load(FOLDER / f"{name}.safetensors", model)
    assert same(masks, expected["masks"])
    assert same(dict(model.state_dict()), expected["model"])
    told = regrow.describe(FOLDER / f"{name}.safetensors").layers
    assert {layer.name: layer.active for layer in told} == {key: int(mask.sum()) for key, mask in masks.items()}


@pytest.mark.parametrize(("name", "make"), [("file_without_sparsifier", make_model), ("file_tied", make_tied)])
def test_a_file_of_a_model_alone_fills_another(name, make):
    model = make()
    masks = regrow.load(FOLDER / f"{name}.safetensors", model)
    assert same(dict(model.state_dict()), read(name)["model"])
    assert all(torch.equal(model.state_dict()[key] != 0, mask) for key, mask in masks.items())
    assert masks


@pytest.mark.parametrize("name", ["file_dense", "file_packed"])
def test_a_file_fills_a_packed_model(name):
    training = Training(CASES["dsr_packed"], seed=6)
    regrow.load(FOLDER / f"{name}.safetensors", training.model)
    found, expected = training.outcome(), read(name)
    assert same(found["masks"], expected["masks"])
    assert same(found["model"], expected["model"])


def test_a_file_of_shared_values_fills_a_model_that_shares_them_alike():
    training = Training(CASES["hashed"], seed=5)
    regrow.load(FOLDER / "file_hashed.safetensors", training.model)
    assert same(training.outcome()["model"], read("file_hashed")["model"])


def less_by_one(state):
    mask = next(iter(state["masks"].values()))
    mask.view(-1)[mask.view(-1).nonzero()[0]] = False


DAMAGE = {
    "a mask that lost a weight": less_by_one,
    "a budget that grew": lambda state: state.update(budget=state["budget"] + 1),
    "a history of numbers": lambda state: state.update(history=[1, 2]),
    "a history that says less": lambda state: state["history"][0].pop("grown"),
    "a memory without its threshold": lambda state: state.update(memory={}),
    "a goal of another kind": lambda state: state.update(goal=3),
    "companions of another kind": lambda state: state.update(companions=[1]),
    "companions of tensors that are none": lambda state: state.update(companions={"mean gradient": 4}),
}


def by_loading(training, state):
    training.sparse.load_state_dict(state)


def by_attaching(training, state):
    training.sparse.detach()
    regrow.attach(training.model, training.optimizer, training.case.method, resume=state)


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("take", [by_loading, by_attaching])
def test_a_damaged_state_is_refused_and_nothing_is_taken(what, take):
    training, state = Training(CASES["dsr"], seed=6), read("dsr")["sparse"]
    before = copy.deepcopy((dict(training.model.state_dict()), training.sparse.masks()))
    DAMAGE[what](state)
    with pytest.raises(ValueError, match=r"the state|the mask"):
        take(training, state)
    assert same(dict(training.model.state_dict()), before[0])
    assert same(training.sparse.masks(), before[1])
    assert training.sparse.num_steps == 0
