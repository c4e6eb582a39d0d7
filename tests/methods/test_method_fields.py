"""Methods: what they accept, how large a budget they give, and when they are due."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import regrow
from regrow import DSR, METHODS, SET, SNFS, DeepR, Dense, Gradual, Hashed, RigL, Static
from regrow.methods.method import Method, method

ALL = sorted(METHODS)
INF, NAN = float("inf"), float("nan")
_ = None  # a free place


# Fields


@pytest.mark.parametrize("name", ALL)
def test_a_method_needs_only_a_sparsity(name):
    assert METHODS[name](sparsity=0.9).sparsity == 0.9
    assert getattr(regrow, name) is METHODS[name]


@pytest.mark.parametrize("name", [name for name in ALL if name != "Dense"])
def test_a_missing_sparsity_is_asked_for_with_an_example(name):
    with pytest.raises(TypeError, match=rf"{name} needs a sparsity, e.g. {name}\(sparsity=0.9\)"):
        METHODS[name]()


@pytest.mark.parametrize("name", ALL)
def test_methods_are_frozen_equal_by_value_and_can_be_copied(name):
    one = METHODS[name](sparsity=0.5)
    with pytest.raises(FrozenInstanceError):
        one.sparsity = 0.6
    assert one == METHODS[name](sparsity=0.5) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert replace(one, sparsity=0.25) == METHODS[name](sparsity=0.25)
    assert repr(one).startswith(f"{name}(sparsity=0.5")


@pytest.mark.parametrize("name", ALL)
def test_fields_are_given_by_keyword(name):
    with pytest.raises(TypeError, match="takes its fields by name"):
        METHODS[name](0.9)


def test_a_misspelt_field_is_answered_with_the_right_one():
    with pytest.raises(TypeError, match="DSR has no field 'prun'; did you mean 'prune'"):
        DSR(sparsity=0.9, prun=600)


@pytest.mark.parametrize("sparsity", [1, 1.0, -0.1, NAN, INF, "0.9", None, True, [0.9]])
@pytest.mark.parametrize("name", ALL)
def test_sparsity_must_be_a_fraction_below_one(name, sparsity):
    with pytest.raises(ValueError, match=r"sparsity must be in \[0, 1\)"):
        METHODS[name](sparsity=sparsity)


def test_percent_are_recognised():
    with pytest.raises(ValueError, match=r"got 90; did you mean 0\.9\?"):
        DSR(sparsity=90)


COMMON = [
    ("period", 0, "period must be a whole number of steps >= 1, got 0"),
    ("period", 2.5, "period must be a whole number"),
    ("period", True, "period must be a whole number"),
    ("period", {0: 100, 50: 0}, "period must be a whole number"),
    ("period", {10: 100}, "must begin at step 0"),
    ("period", {}, "must begin at step 0"),
    ("period", {0: 100, -5: 10}, "first step of a period"),
    ("period", {0: 100, 2.5: 10}, "first step of a period"),
    ("until", 10.5, "until must be a step number"),
    ("until", "100", "until must be a step"),
    ("until", -5, "until must be a step"),
    ("granularity", "weights", "granularity must be one of"),
    ("granularity", None, "granularity must be one of"),
    ("distribution", "ERK", "distribution must be one of"),
    ("distribution", {"*": 90}, "did you mean 0.9"),
    ("l1", -1e-4, "l1 must be a number >= 0"),
    ("l1", NAN, "l1 must be"),
    ("l1", INF, "l1 must be"),
    ("l1", "1e-4", "l1 must be"),
]


@pytest.mark.parametrize(("field", "value", "message"), COMMON)
@pytest.mark.parametrize("name", ALL)
def test_common_fields_are_checked_in_every_method(name, field, value, message):
    with pytest.raises(ValueError, match=message):
        METHODS[name](sparsity=0.9, **{field: value})


OWN = [
    (DSR, "prune", -1),
    (DSR, "prune", 1.5),
    (DSR, "prune", NAN),
    (DSR, "prune", True),
    (DSR, "prune", "600"),
    (DSR, "tolerance", 1),
    (DSR, "tolerance", -0.1),
    (DSR, "tolerance", NAN),
    (DSR, "threshold", 0),
    (DSR, "threshold", -1e-3),
    (DSR, "threshold", INF),
    (DSR, "threshold", NAN),
    (SET, "fraction", 1.01),
    (SET, "fraction", -1),
    (SET, "fraction", True),
    (SET, "fraction", NAN),
    (RigL, "fraction", 2),
    (RigL, "fraction", -0.1),
    (RigL, "fraction", NAN),
    (SNFS, "fraction", 1.1),
    (SNFS, "fraction", NAN),
    (SNFS, "momentum", -0.1),
    (SNFS, "momentum", 2),
    (DeepR, "scope", "global"),
    (DeepR, "granularity", "kernel"),
    (Hashed, "granularity", "kernel"),
    (Hashed, "granularity", "channel"),
    (DeepR, "temperature", -1e-9),
    (DeepR, "temperature", NAN),
    (DeepR, "temperature", INF),
    (DeepR, "temperature", "hot"),
    (DeepR, "temperature", {}),
    (DeepR, "temperature", {100: 1e-9}),
    (DeepR, "temperature", {0: 1e-9, 100: -1e-9}),
    (DeepR, "temperature", lambda step: -1.0),
    (Gradual, "begin", -1),
    (Gradual, "begin", 0.5),
    (Gradual, "begin", 10_000),
    (Gradual, "until", 0),
]


@pytest.mark.parametrize(("kind", "field", "value"), OWN)
def test_fields_of_its_own_are_checked_by_each_method(kind, field, value):
    with pytest.raises(ValueError, match=field):
        kind(sparsity=0.9, **{field: value})


def test_gradual_pruning_must_end():
    with pytest.raises(ValueError, match="until must be a step after begin"):
        Gradual(sparsity=0.9, until=None)


def test_a_new_method_is_known_by_its_name(monkeypatch):
    monkeypatch.setitem(METHODS, "Rewirer", Method)  # so that the name is gone again afterwards

    @method
    class Rewirer(Method):
        extra: int = 3

    assert METHODS["Rewirer"] is Rewirer is regrow.Rewirer
    assert Rewirer(sparsity=0.5, extra=4).extra == 4


def test_an_unknown_method_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Rewirer'"):
        _ = regrow.Rewirer


# Budgets and due steps


@pytest.mark.parametrize("name", [name for name in ALL if name != "Dense"])
def test_the_budget_is_what_sparsity_leaves_rounded_once(name):
    chosen = METHODS[name](sparsity=0.9)
    assert chosen.budget(1_451_520) == 145_152
    assert chosen.budget(26) == 3


def test_dense_keeps_everything_whatever_its_sparsity():
    assert Dense(sparsity=0.9).budget(8) == 8
    assert Dense().budget(8) == 8


def test_gradual_pruning_starts_dense():
    layer = torch.nn.Linear(4, 2, bias=False)
    sparse = regrow.attach(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Gradual(sparsity=0.75))
    assert sparse.active == 8
    assert sparse.budget == 2


@pytest.mark.parametrize("still", [Static(sparsity=0.5, period=1), Dense(period=1), Hashed(sparsity=0.5)])
def test_static_dense_and_hashed_never_rewire(still):
    assert not any(still.is_due(step) for step in range(20))


def test_a_method_rewires_every_period_until_it_stops():
    assert [step for step in range(20) if DSR(sparsity=0.5, period=4, until=12).is_due(step)] == [4, 8, 12]


def test_deepr_rewires_every_step():
    assert all(DeepR(sparsity=0.5).is_due(step) for step in range(1, 20))


def test_gradual_pruning_lets_no_step_pass_that_reaches_its_target():
    pruning = Gradual(sparsity=0.5, begin=5, until=13, period=4)
    assert [step for step in range(30) if pruning.is_due(step)] == [8, 12, 13]
