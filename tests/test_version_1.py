"""What the first versions wrote loads for ever: checkpoints train on as they would have, files give the same models."""

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
