"""Methods: what they accept, how large a budget they give, and when they are due."""

import copy
import dataclasses
import inspect
import pickle
import pydoc
import runpy
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from every_method import goes_by_weight
from regrow import DSR, MEST, METHODS, SET, SNFS, Block, Dense, Gradual, GraNet, Hashed, RigL, Static
from regrow.methods import NEEDS, Method, method
from strategies import row

ALL = sorted(METHODS)
HERE = [name for name in ALL if METHODS[name].__module__.startswith("regrow.methods.")]
BY_WEIGHT = [name for name in ALL if goes_by_weight(METHODS[name])]  # have no other granularity
INF, NAN = float("inf"), float("nan")


# Fields


@pytest.mark.parametrize("name", ALL)
def test_a_method_needs_only_a_sparsity(name):
    assert METHODS[name](sparsity=0.9).sparsity == 0.9
    assert getattr(regrow, name) is METHODS[name]


@pytest.mark.parametrize("name", [name for name in ALL if name != "Dense"])
def test_a_missing_sparsity_is_asked_for_with_an_example(name):
    with pytest.raises(TypeError, match=rf"{name} needs a sparsity, e.g. {name}\(sparsity=0.9\)"):
        METHODS[name]()


def test_beside_masks_any_sparsity_does_unless_it_is_the_goal_of_a_ramp():
    with pytest.raises(TypeError, match="beside start=masks, which define the budget, any will do"):
        regrow.Static()
    with pytest.raises(TypeError, match=r"Gradual\(sparsity=0\.9\)$"):
        regrow.Gradual()
    model, mask = torch.nn.Linear(4, 4), torch.eye(4).bool()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert regrow.attach(model, optimizer, regrow.Static(sparsity=0), start={"weight": mask}).budget == 4


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
    ("granularity", "4x", "or a block such as '4x4'"),
    ("granularity", "0x4", "a block has whole numbers of rows and columns"),
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
    (MEST, "fraction", 1.1),
    (MEST, "fraction", NAN),
    (MEST, "mix", -0.01),
    (MEST, "mix", INF),
    (MEST, "mix", "1"),
    (GraNet, "fraction", -0.1),
    (GraNet, "fraction", 2),
    (GraNet, "ramp", 1.1),
    (GraNet, "ramp", NAN),
    (GraNet, "until", 0),
    (GraNet, "until", None),
    (Hashed, "granularity", "kernel"),
    (Hashed, "granularity", "channel"),
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


def test_the_first_sparsity_of_granet_is_one_like_the_last():
    with pytest.raises(ValueError, match=r"sparsity must be in \[0, 1\), got 50; did you mean 0\.5\?"):
        GraNet(sparsity=0.9, first_sparsity=50)


@pytest.mark.parametrize("name", [name for name in ALL if name not in BY_WEIGHT])
def test_blocks_may_be_written_as_text(name):
    chosen = METHODS[name](sparsity=0.5, granularity="4x2")
    assert chosen.granularity == Block(4, 2)
    assert chosen == METHODS[name](sparsity=0.5, granularity=Block(4, 2))
    assert pickle.loads(pickle.dumps(chosen)) == chosen


@pytest.mark.parametrize("name", BY_WEIGHT)
def test_blocks_are_refused_where_single_weights_are_what_counts(name):
    with pytest.raises(ValueError, match="use granularity='weight'"):
        METHODS[name](sparsity=0.5, granularity="4x2")


# The registry


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a file with a method of a name; what is registered is forgotten after the test."""
    registry = import_module("regrow.methods.method")
    monkeypatch.setattr(registry, "_FILES", dict(registry._FILES))
    known = dict(METHODS)

    def write(file: str, name: str) -> Path:
        path = tmp_path / file
        path.write_text(
            f"from regrow.methods import Method, method\n\n@method\nclass {name}(Method):\n    extra: int = 3\n"
        )
        return path

    yield write
    METHODS.clear()
    METHODS.update(known)


def test_a_new_method_is_known_by_its_name(write):
    rewirer = runpy.run_path(str(write("mine.py", "Rewirer")))["Rewirer"]
    assert METHODS["Rewirer"] is rewirer is regrow.Rewirer
    assert rewirer(sparsity=0.5, extra=4).extra == 4
    assert "Rewirer" in dir(regrow)


def test_methods_are_names_of_the_library_like_its_others():
    found = {}
    exec("from regrow import *", found)
    assert found["attach"] is regrow.attach
    assert {name: found[name] for name in HERE} == {name: METHODS[name] for name in HERE}
    assert {*HERE, "attach"} <= set(dir(regrow))


def test_a_name_that_another_file_has_taken_is_refused(write):
    first, second = write("first.py", "Rewirer"), write("second.py", "Rewirer")
    taken = runpy.run_path(str(first))["Rewirer"]
    told = r"there is a method Rewirer already, in .*first\.py; give the one in .*second\.py another name"
    with pytest.raises(ValueError, match=told):
        runpy.run_path(str(second))
    assert METHODS["Rewirer"] is taken


def test_the_names_of_the_methods_that_are_here_are_taken(write):
    with pytest.raises(ValueError, match=r"there is a method DSR already, in .*dsr\.py"):
        runpy.run_path(str(write("mine.py", "DSR")))
    assert METHODS["DSR"] is DSR


def test_a_file_that_is_run_again_takes_its_own_place(write):
    file = str(write("mine.py", "Rewirer"))
    first, second = (runpy.run_path(file)["Rewirer"] for _ in range(2))
    assert METHODS["Rewirer"] is second is not first


def test_a_need_that_nothing_offers_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match="Rewirer needs 'free_gradeint', which nothing offers; did you mean 'free_gra"):

        @method
        class Rewirer(Method):
            needs = frozenset({"free_gradeint"})

    assert "Rewirer" not in METHODS


@pytest.mark.parametrize("name", ALL)
def test_every_method_needs_only_what_is_offered(name):
    assert METHODS[name].needs <= set(NEEDS)


def test_an_unknown_method_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Rewirer'"):
        _ = regrow.Rewirer


# Budgets and due steps


@pytest.mark.parametrize("name", [name for name in ALL if name != "Dense"])
def test_the_budget_is_what_sparsity_leaves_rounded_once(name):
    chosen = METHODS[name](sparsity=0.9)
    assert chosen.budget(1_451_520) == 145_152
    assert chosen.budget(26) == 3


@pytest.mark.parametrize("name", [name for name in ALL if "changing_budget" not in METHODS[name].needs])
def test_a_budget_that_does_not_change_is_that_of_the_end(name):
    tally = row([0.5, 0.5, None, None], target=1).tally
    assert [METHODS[name](sparsity=0.75).budget_at(step, tally) for step in (0, 1, 1000)] == [1, 1, 1]


def test_dense_keeps_everything_whatever_its_sparsity():
    assert Dense(sparsity=0.9).budget(8) == 8
    assert Dense().budget(8) == 8


def test_gradual_pruning_starts_dense():
    layer = torch.nn.Linear(4, 2, bias=False)
    sparse = regrow.attach(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Gradual(sparsity=0.75))
    assert sparse.active == sparse.budget == 8
    assert sparse.target == 2


def test_granet_starts_at_its_first_sparsity():
    layer = torch.nn.Linear(4, 2, bias=False)
    granet = GraNet(sparsity=0.75, first_sparsity=0.25)
    sparse = regrow.attach(layer, torch.optim.SGD(layer.parameters(), lr=0.1), granet)
    assert sparse.active == sparse.budget == 6
    assert sparse.target == 2


@pytest.mark.parametrize("still", [Static(sparsity=0.5, period=1), Dense(period=1), Hashed(sparsity=0.5)])
def test_static_dense_and_hashed_never_rewire(still):
    assert not any(still.is_due(step) for step in range(20))


def due_steps(period, until=None, last=20):
    method = DSR(sparsity=0.5, period=period, until=until)
    return [step for step in range(last + 1) if method.is_due(step)]


def test_rewiring_is_due_after_every_period_and_never_before_the_first_step():
    assert due_steps(5) == [5, 10, 15, 20]


def test_the_last_rewiring_may_fall_on_until():
    assert due_steps(5, until=10) == [5, 10]
    assert due_steps(5, until=14) == [5, 10]


def test_a_period_of_one_is_every_step():
    assert due_steps(1, last=4) == [1, 2, 3, 4]


def test_a_new_period_counts_from_its_own_first_step():
    # Every 4 steps up to step 8, every 5 from there.
    assert due_steps({0: 4, 8: 5}) == [4, 8, 13, 18]


def test_the_paper_doubles_its_period():
    steps = due_steps({0: 100, 1000: 200, 2000: 400}, until=2800, last=4000)
    assert steps == [*range(100, 1000, 100), *range(1000, 2000, 200), 2000, 2400, 2800]


@given(st.integers(1, 50), st.integers(0, 500))
@settings(deadline=None)
def test_a_mapping_with_one_period_is_that_period(period, step):
    assert DSR(sparsity=0.5, period={0: period}).is_due(step) == DSR(sparsity=0.5, period=period).is_due(step)


def test_gradual_pruning_lets_no_step_pass_that_reaches_its_target():
    pruning = Gradual(sparsity=0.5, begin=5, until=13, period=4)
    assert [step for step in range(30) if pruning.is_due(step)] == [8, 12, 13]


def test_granet_lets_its_last_step_not_pass():
    granet = GraNet(sparsity=0.5, until=13, period=4)
    assert [step for step in range(30) if granet.is_due(step)] == [4, 8, 12, 13]


# What they tell of themselves


@pytest.mark.parametrize("cls", METHODS.values(), ids=METHODS)
def test_a_signature_shows_the_fields_and_their_defaults(cls):
    shown = inspect.signature(cls).parameters
    assert list(shown) == [field.name for field in dataclasses.fields(cls)]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in shown.values())
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    assert all(p.default is p.empty or p.default == defaults[name] for name, p in shown.items())
    assert f"{cls.__name__}(*, sparsity: float" in pydoc.render_doc(cls, renderer=pydoc.plaintext)


def test_the_package_lists_what_is_meant_for_others_and_no_more():
    listed = {name for name in dir(regrow) if not name.startswith("_")}
    assert listed == set(regrow.__all__) - {"__version__"}
    assert METHODS.keys() <= listed
