"""DeepR: what it accepts, what it decides on a row of eights, worked out by hand, and that it keeps every promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every_method import can_be_packed, goes_by_weight, in_every_way
from regrow import DeepR
from regrow.methods.effects.random_walk import RandomWalk
from regrow.methods.effects.signs import Signs
from regrow.testing import check_method
from strategies import decide, row, rows

_ = None  # a free place
INF, NAN = float("inf"), float("nan")


WALKED = row(
    [0.9, -0.1, _, 0.4, _, -0.2, 0.3, 0.0],
    [0.5, _, _, -0.6, _, _, _, _],
    sign=["++++++++", "-------+"],
)


def test_deepr_replaces_connections_that_left_their_side_of_zero():
    # Of the first layer two fell below zero and two places are free; of the second 0.5 rose above it.
    done = decide(DeepR(sparsity=0.5), WALKED, step=1)
    assert done.gone == [[1, 5], [0]]
    assert done.come[0] == [2, 4]
    assert len(done.come[1]) == 1
    assert set(done.come[1]) <= {1, 2, 4, 5, 6, 7}


def test_deepr_across_layers_reactivates_anywhere():
    # Three of 2 + 6 dormant places come; over many steps the first layer gets 3 * 2/8 on average.
    deepr = DeepR(sparsity=0.5, scope="network")
    done = [decide(deepr, WALKED, step=step) for step in range(1, 201)]
    assert all(one.gone == [[1, 5], [0]] and sum(one.grown) == 3 for one in done)
    assert sum(one.grown[0] for one in done) / 200 == pytest.approx(0.75, abs=0.2)


def test_deepr_keeps_a_layers_last_connection_on_whatever_side():
    assert decide(DeepR(sparsity=0.5), row([-0.5, _, _, _], sign=["++++"])).gone == [[]]


def test_deepr_keeps_what_has_no_place_to_go_to():
    done = decide(DeepR(sparsity=0.25), row([-0.5, -0.1, 0.4, _], sign=["++++"]))
    assert done.gone == [[1]]
    assert done.come == [[3]]


def test_deepr_puts_its_l1_into_the_walk_not_into_the_gradient():
    signs, walk = DeepR(sparsity=0.5, l1=1e-4).effects()
    assert isinstance(signs, Signs)
    assert isinstance(walk, RandomWalk)


@pytest.mark.parametrize("temperature", [0.5, {0: 0.5, 10: 2.0}, lambda step: 0.5 if step < 10 else 2.0])
def test_deepr_has_the_temperature_of_the_step(temperature):
    deepr = DeepR(sparsity=0.5, temperature=temperature)
    assert [deepr.temperature_at(step) for step in (0, 9)] == [0.5, 0.5]
    assert deepr.temperature_at(10) == (0.5 if temperature == 0.5 else 2)


def test_a_temperature_that_falls_below_zero_on_its_way_is_refused_there():
    deepr = DeepR(sparsity=0.5, temperature=lambda step: 1 - step)
    with pytest.raises(ValueError, match="the temperature is -1 at step 2; it must not fall below 0"):
        deepr.temperature_at(2)


# Fields


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scope", "global"),
        ("granularity", "kernel"),
        ("temperature", -1e-9),
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", "hot"),
        ("temperature", {}),
        ("temperature", {100: 1e-9}),
        ("temperature", {0: 1e-9, 100: -1e-9}),
        ("temperature", lambda step: -1.0),
    ],
)
def test_fields_of_its_own_are_checked(field, value):
    with pytest.raises(ValueError, match=field):
        DeepR(sparsity=0.9, **{field: value})


def test_temperatures_begin_at_whole_steps():
    with pytest.raises(ValueError, match="must begin at whole steps"):
        DeepR(sparsity=0.9, temperature={0: 1.0, "late": 2.0})


def test_it_rewires_every_step():
    assert DeepR.rewires_every_step
    assert all(DeepR(sparsity=0.5).is_due(step) for step in range(1, 20))


# Properties


def test_what_is_true_of_every_method_is_tested_in_both_scopes():
    assert [deepr.scope for deepr in in_every_way(DeepR, sparsity=0.5)] == ["layer", "network"]
    assert goes_by_weight(DeepR)
    assert can_be_packed(DeepR(sparsity=0.5))


@given(rows(), st.sampled_from(["layer", "network"]), st.integers(1, 60), st.integers(1, 10**6))
@settings(deadline=None, max_examples=50)
def test_the_plan_does_not_depend_on_how_the_row_is_cut(row, scope, limit, step):
    deepr = DeepR(sparsity=0.5, scope=scope)
    assert decide(deepr, row, step=step, limit=limit) == decide(deepr, row, step=step)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_deepr_across_layers_conforms(storage):
    check_method(DeepR(sparsity=0.8, scope="network", temperature=1e-4), storage=storage)
