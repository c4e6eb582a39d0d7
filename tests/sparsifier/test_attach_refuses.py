"""What attach, methods and sparsifiers refuse, and how; and what only looks like bad input."""

import copy

import pytest
import torch

import regrow
from two_layers import sgd, train, two_layers

REFUSED = {
    "90 for 0.9": (lambda m: regrow.DSR(sparsity=90), r"did you mean 0\.9\?"),
    "one": (lambda m: regrow.DSR(sparsity=1.0), r"must be in \[0, 1\)"),
    "negative": (lambda m: regrow.DSR(sparsity=-0.1), r"must be in \[0, 1\)"),
    "nan": (lambda m: regrow.DSR(sparsity=float("nan")), r"must be in \[0, 1\)"),
    "too small a budget": (lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.999)), "lower the sparsity"),
    "no such layer": (
        lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.9), layers=["0.weigth"]),
        r"no layer matches '0\.weigth'; did you mean '0\.weight'",
    ),
    "no such layer in the distribution": (
        lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.9, distribution={"stem*": 0.5})),
        r"no layer matches 'stem\*'",
    ),
    "an optimizer of another model": (
        lambda m: regrow.attach(m, sgd(two_layers()), regrow.SET(sparsity=0.9)),
        "holds none of the model's parameters",
    ),
    "a running mean that forgets all, packed": (
        lambda m: regrow.attach(m, sgd(m), regrow.SNFS(sparsity=0.9, momentum=0), storage="packed"),
        "SNFS needs a running mean of the gradient of every place",
    ),
    "LBFGS": (
        lambda m: regrow.attach(m, torch.optim.LBFGS(m.parameters()), regrow.SET(sparsity=0.9)),
        "LBFGS cannot train a sparse network",
    ),
    "another storage": (
        lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.9), storage="dens"),
        "storage must be",
    ),
    "another start": (lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.9), start="ones"), "start must be"),
    "masks of another model": (
        lambda m: regrow.attach(m, sgd(m), regrow.SET(sparsity=0.9), start={"fc.weight": torch.ones(2, 2).bool()}),
        r"masks and sparse layers differ",
    ),
    "float masks": (
        lambda m: regrow.attach(
            m, sgd(m), regrow.SET(sparsity=0.9), start={"0.weight": torch.ones(30, 20), "2.weight": torch.ones(10, 30)}
        ),
        "must be a bool tensor",
    ),
    "an empty mask": (
        lambda m: regrow.attach(
            m,
            sgd(m),
            regrow.SET(sparsity=0.9),
            start={"0.weight": torch.ones(30, 20).bool(), "2.weight": torch.zeros(10, 30).bool()},
        ),
        "is empty",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_bad_input_gets_one_sentence_before_anything_was_changed(what):
    attempt, sentence = REFUSED[what]
    model = two_layers()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=sentence) as refusal:
        attempt(model)
    assert "\n" not in str(refusal.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda m: regrow.DSR(sparsity=0.9, prunes=3), "DSR has no field 'prunes'; did you mean 'prune'?"),
        (lambda m: regrow.DSR(), "DSR needs a sparsity"),
        (lambda m: regrow.attach(m, sgd(m), regrow.DSR), "method must be one of regrow's"),
        (lambda m: regrow.attach(m, m, regrow.DSR(sparsity=0.9)), "optimizer must be a torch.optim.Optimizer"),
        (lambda m: regrow.attach([m], sgd(m), regrow.DSR(sparsity=0.9)), "model must be a torch.nn.Module"),
        (lambda m: regrow.attach(m, sgd(m), regrow.DSR(sparsity=0.9), seed="a"), "seed must be a whole number"),
    ],
)
def test_wrong_types_say_what_is_wanted(attempt, sentence):
    with pytest.raises(TypeError) as refusal:
        attempt(two_layers())
    assert sentence in str(refusal.value)


def test_attaching_twice_is_refused_until_the_first_is_detached_or_gone():
    model = two_layers()
    first = regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9))
    with pytest.raises(ValueError, match=r"already attached.* start=old\.masks\(\)"):
        regrow.attach(model, first.optimizer, regrow.SET(sparsity=0.9))
    with pytest.raises(ValueError, match="already attached"):
        regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9))
    del first
    regrow.attach(
        model, sgd(model), regrow.SET(sparsity=0.9)
    )  # the optimizer of the first is gone, and with it the hooks


def test_a_model_on_the_meta_device_is_refused():
    with torch.device("meta"):
        model = two_layers()
    with pytest.raises(ValueError, match="meta device"):
        regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: {}, "not the state of a sparsifier"),
        (lambda state: state | {"method": "SET"}, "the state is of SET, this sparsifier runs DSR"),
        (lambda state: state | {"version": 99}, "version 99"),
        (lambda state: state | {"granularity": "kernel"}, "granularity"),
        (lambda state: state | {"masks": {"a": torch.ones(3).bool()}}, "masks and sparse layers differ"),
        (
            lambda state: state | {"masks": state["masks"] | {"0.weight": torch.ones(2, 2).bool()}},
            r"0\.weight must be a bool tensor of shape \(30, 20\)",
        ),
    ],
)
def test_a_state_of_something_else_is_refused_with_nothing_changed(change, sentence):
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9))
    before = sparse.masks()
    with pytest.raises(ValueError, match=sentence):
        sparse.load_state_dict(change(sparse.state_dict()))
    assert all(torch.equal(mask, before[name]) for name, mask in sparse.masks().items())


def test_given_masks_need_no_feasible_sparsity():
    model = two_layers()
    masks = {"0.weight": torch.ones(30, 20).bool(), "2.weight": torch.ones(10, 30).bool()}
    assert regrow.attach(model, sgd(model), regrow.Static(sparsity=0.9999), start=masks).budget == 900


def test_a_detached_sparsifier_is_copied_without_touching_the_model():
    model = two_layers()
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5))
    sparse.detach()
    train(model, optimizer)
    twin, _, _ = copy.deepcopy((model, optimizer, sparse))
    assert torch.equal(twin[0].weight, model[0].weight)


def test_a_state_that_contradicts_itself_is_refused():
    model = two_layers()
    sparse = regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9))
    for damage in ({"budget": 7}, {"goal": [1]}, {"memory": None}):
        with pytest.raises(ValueError, match="contradicts itself"):
            sparse.load_state_dict(sparse.state_dict() | damage)


def test_fields_have_names():
    with pytest.raises(TypeError, match="takes its fields by name"):
        regrow.DSR(0.9)


def test_layers_and_distributions_of_wrong_types_say_what_is_wanted():
    model = two_layers()
    with pytest.raises(TypeError, match="layers must be names"):
        regrow.attach(model, sgd(model), regrow.SET(sparsity=0.9), layers=5)
    with pytest.raises(ValueError, match="must map layer patterns"):
        regrow.SET(sparsity=0.9, distribution={1: 0.9})


def test_an_optimizer_is_judged_also_while_a_warm_up_holds_its_rate_at_zero():
    class Shifting(torch.optim.SGD):
        """Moves weights that have no gradient, in proportion to its rate."""

        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter += group["lr"]

    model = two_layers()
    with pytest.raises(ValueError, match="it moves weights that have no gradient"):
        regrow.attach(model, Shifting(model.parameters(), lr=0.0), regrow.Static(sparsity=0.5))


def test_huge_finite_weights_are_no_reason_to_stop():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=1))
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.sign() * 3e38)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert len(sparse.history) == 1


@pytest.mark.parametrize("seed", [2**64, 2**70, -1])
def test_a_seed_that_would_be_another_one_is_refused(seed: int):
    model = two_layers()
    with pytest.raises(ValueError, match=rf"seed must be in \[0, 2\*\*64\), got {seed}"):
        regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9), seed=seed)
    regrow.attach(model, sgd(model), regrow.DSR(sparsity=0.9), seed=2**64 - 1)
