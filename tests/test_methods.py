"""Methods: what they accept, and what each decides on a row of eights, worked out by hand."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from regrow import DSR, METHODS, SET, SNFS, DeepR, Dense, Gradual, Hashed, RigL, Static
from regrow.methods.method import Method, method
from strategies import decide, row, with_pruned

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


# DSR

EIGHTS = row(
    [0.9, _, 0.05, _, -0.4, _, _, _],
    [0.01, -0.02, 0.3, _, 0.5, -0.6, 0.7, _],
)


def test_dsr_prunes_by_one_threshold_and_regrows_where_weights_survive():
    # Below 0.1: one of the first layer's three, two of the second's six. Survivors 2 : 4, so the three come back 1 : 2.
    done = decide(DSR(sparsity=0.5, threshold=0.1, prune=3), EIGHTS)
    assert done.gone == [[2], [0, 1]]
    assert done.grown == [1, 2]
    assert done.come[1] == [3, 7]  # its only places that were free before
    assert done.come[0][0] in (1, 3, 5, 6, 7)


def test_dsr_moves_weights_between_layers():
    # All but the guarded last of the first layer go, nothing of the second: survivors 1 : 4, two come back 0.4 : 1.6.
    tilted = row([0.01, 0.02, 0.03, _, _, _, _, _], [0.5, 0.5, 0.5, 0.5, _, _, _, _])
    done = decide(DSR(sparsity=0.5, threshold=0.1), tilted)
    assert done.gone == [[0, 1], []]
    assert done.grown == [0, 2]


def test_dsr_keeps_the_largest_of_a_layer_that_is_all_below_the_threshold():
    done = decide(DSR(sparsity=0.5, threshold=1.0), row([0.1, -0.3, 0.2, _, _, _, _, _]))
    assert done.gone == [[0, 2]]
    assert done.pruned == done.grown == [2]


def test_dsr_prunes_no_more_than_the_network_has_free_places():
    # Five are below the threshold, but the row has only two free places: the two smallest of the five go.
    full = row([0.1, 0.2, 0.3, _], [0.15, 0.25, 0.9, _])
    done = decide(DSR(sparsity=0.25, threshold=0.5), full)
    assert done.gone == [[0], [0]]
    assert done.come == [[3], [3]]


def test_dsr_remembers_the_threshold_from_the_first_rewiring_on():
    assert DSR(sparsity=0.5, threshold=0.25).first_memory() == {"threshold": 0.25}


def threshold_after(pruned: int, *, prune, tolerance=0.1, active=100, free=900) -> float:
    case = row([1.0] * active + [_] * free)
    dsr = DSR(sparsity=0.5, prune=prune, tolerance=tolerance)
    return dsr.next_memory({"threshold": 1.0}, with_pruned(case.tally, pruned))["threshold"]


@pytest.mark.parametrize(
    ("pruned", "threshold"),
    [(0, 2), (17, 2), (18, 1), (20, 1), (22, 1), (23, 0.5), (99, 0.5)],
)
def test_the_threshold_doubles_below_the_band_halves_above_it_and_rests_on_its_edges(pruned, threshold):
    # N_p = 20, delta = 0.1: the band is 18 .. 22.
    assert threshold_after(pruned, prune=20) == threshold


@pytest.mark.parametrize(("pruned", "threshold"), [(8, 2), (9, 1), (11, 1), (12, 0.5)])
def test_a_fraction_to_prune_is_one_of_the_active_units(pruned, threshold):
    # A tenth of 100 active ones is 10: the band is 9 .. 11.
    assert threshold_after(pruned, prune=0.1) == threshold


def test_without_tolerance_only_the_exact_number_rests():
    assert [threshold_after(n, prune=20, tolerance=0.0) for n in (19, 20, 21)] == [2, 1, 0.5]


def test_a_target_beyond_the_free_places_counts_as_all_of_them():
    # Only 10 can go and come back; 10 of them going is as asked.
    assert threshold_after(10, prune=50, free=10) == 1
    assert threshold_after(8, prune=50, free=10) == 2


def test_the_new_threshold_is_used_from_the_next_time_on():
    first = decide(DSR(sparsity=0.5, threshold=0.1, prune=7), EIGHTS)
    assert first.gone == [[2], [0, 1]]
    assert first.memory == {"threshold": 0.2}
    # 0.2, then 0.4: the second time 0.3 goes too.
    second = decide(DSR(sparsity=0.5, threshold=0.1, prune=7), EIGHTS, memory={"threshold": 0.4})
    assert second.gone == [[2], [0, 1, 2]]


def test_a_threshold_that_nothing_can_meet_does_not_run_off():
    dsr, case = DSR(sparsity=0.5, prune=20), row([1.0] * 50 + [_] * 50)
    low, high = {"threshold": 1.0}, {"threshold": 1.0}
    for _step in range(2000):
        low, high = dsr.next_memory(low, with_pruned(case.tally, 49)), dsr.next_memory(high, case.tally)
    assert 0 < low["threshold"] < 1e-20
    assert 1e20 < high["threshold"] < INF


@given(st.integers(1, 10**6), st.integers(0, 10**6))
@settings(deadline=None)
def test_the_edges_of_the_band_are_exact(target, pruned):
    case = with_pruned(replace(EIGHTS.tally, active=(10**6, 10**6), num_units=(10**7, 10**7)), pruned, 0)
    after = DSR(sparsity=0.5, prune=target).next_memory({"threshold": 1.0}, case)["threshold"]
    band = Fraction(9, 10) * target, Fraction(11, 10) * target
    assert after == (2 if pruned < band[0] else 0.5 if pruned > band[1] else 1)


# SET


def test_set_replaces_the_smallest_fraction_of_each_layer_within_it():
    # 0.3 of six and of four, rounded: 2 and 1; the first layer has just two free places.
    done = decide(
        SET(sparsity=0.5, fraction=0.3), row([0.9, 0.1, -0.5, _, 0.2, -0.8, 0.7, _], [0.3, -0.1, 0.2, 0.4, _, _, _, _])
    )
    assert done.gone == [[1, 4], [1]]
    assert done.come[0] == [3, 7]
    assert done.come[1][0] in (4, 5, 6, 7)
    assert done.grown == [2, 1]


def test_set_shares_a_whole_number_in_proportion_to_the_active():
    # Three units of the network, 6 active here and 3 there: two and one.
    done = decide(
        SET(sparsity=0.5, fraction=3), row([0.9, 0.1, -0.5, _, 0.2, -0.8, 0.7, _], [0.3, -0.1, 0.2, _, _, _, _, _])
    )
    assert done.gone == [[1, 4], [1]]


def test_set_with_a_number_larger_than_possible_replaces_what_it_can():
    done = decide(SET(sparsity=0.5, fraction=1000), row([0.9, 0.1, 0.5, _], [0.3, 0.1, _, _]))
    assert done.gone == [[1], [1]]


def test_set_one_means_a_unit_and_one_point_nought_everything():
    eight = row([0.4, 0.1, 0.3, 0.2, _, _, _, _])
    assert decide(SET(sparsity=0.5, fraction=1), eight).gone == [[1]]
    assert decide(SET(sparsity=0.5, fraction=1.0), eight).gone == [[1, 2, 3]]


# RigL

EVIDENCE = row(
    [0.9, _, 0.1, _, -0.2, _, 0.8, _],
    [-0.3, 0.7, _, _, 0.5, _, 0.6, _],
    scores=[[9.0, 1.0, 9.0, 4.0, 9.0, 3.0, 9.0, 2.0], [0.0, 0.0, 5.0, 7.0, 0.0, 8.0, 0.0, 6.0]],
)


def test_rigl_replaces_the_smallest_by_those_with_the_largest_gradient():
    done = decide(RigL(sparsity=0.5, fraction=0.5), EVIDENCE)
    assert done.gone == [[2, 4], [0, 4]]
    assert done.come == [[3, 5], [3, 5]]


def test_rigl_does_not_bring_back_what_it_just_pruned():
    # The pruned places 2 and 4 have the largest gradient of all.
    done = decide(RigL(sparsity=0.5, fraction=0.5), EVIDENCE)
    assert not set(done.come[0]) & {2, 4}


@pytest.mark.parametrize(("step", "pruned"), [(1, [2, 2]), (50, [1, 1]), (100, [0, 0])])
def test_rigl_prunes_less_and_less(step, pruned):
    # 0.5 of 4 falls along a cosine: 2 at the start, 1 half way, none at the end.
    assert decide(RigL(sparsity=0.5, fraction=0.5, until=100), EVIDENCE, step=step).pruned == pruned


def test_rigl_looks_at_the_gradient_of_one_step_only():
    assert RigL(sparsity=0.5).gradient_memory == 0
    assert RigL(sparsity=0.5).distribution == "erk"


# SNFS


def test_snfs_gives_layers_their_share_by_momentum():
    # Half of each layer's 4 go. The mean momentum of active ones is (1 + 2 + 3 + 6) / 4 = 3 and 1, so 4 come as 3 : 1.
    done = decide(
        SNFS(sparsity=0.5, fraction=0.5),
        row(
            [0.9, _, 0.1, _, -0.2, _, 0.8, _],
            [-0.3, 0.7, _, _, 0.5, _, 0.6, _],
            scores=[[1.0, 0.1, 2.0, 0.4, 3.0, 0.3, 6.0, 0.2], [1.0, 1.0, 5.0, 7.0, 1.0, 8.0, 1.0, 6.0]],
        ),
    )
    assert done.gone == [[2, 4], [0, 4]]
    assert done.grown == [3, 1]
    assert done.come == [[3, 5, 7], [5]]


def test_snfs_keeps_a_running_mean():
    assert SNFS(sparsity=0.5, momentum=0.75).gradient_memory == 0.75


def test_snfs_ends_with_its_schedule():
    assert decide(SNFS(sparsity=0.5, fraction=0.5, until=100), EVIDENCE, step=100).pruned == [0, 0]


# DeepR

WALKED = row(
    [0.9, -0.1, _, 0.4, _, -0.2, 0.3, 0.0],
    [0.5, _, _, -0.6, _, _, _, _],
    signs=["++++++++", "-------+"],
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
    assert decide(DeepR(sparsity=0.5), row([-0.5, _, _, _], signs=["++++"])).gone == [[]]


def test_deepr_keeps_what_has_no_place_to_go_to():
    done = decide(DeepR(sparsity=0.25), row([-0.5, -0.1, 0.4, _], signs=["++++"]))
    assert done.gone == [[1]]
    assert done.come == [[3]]


def test_deepr_puts_its_l1_into_the_walk_not_into_the_gradient():
    assert DeepR(sparsity=0.5, l1=1e-4).gradient_l1 == 0
    assert DSR(sparsity=0.5, l1=1e-4).gradient_l1 == 1e-4


@pytest.mark.parametrize("temperature", [0.5, {0: 0.5, 10: 2.0}, lambda step: 0.5 if step < 10 else 2.0])
def test_deepr_walks_at_the_temperature_of_the_step(temperature):
    deepr = DeepR(sparsity=0.5, l1=0.0, temperature=temperature)
    moved = deepr.walk(torch.tensor([True]), torch.tensor([1.0]), 1.0, 1)
    assert moved.item() == 1.0  # sqrt(2 * rate * T)


# Gradual pruning


@pytest.mark.parametrize(("step", "left"), [(0, 62), (4, 24), (8, 10), (12, 8)])
def test_gradual_pruning_follows_the_cubic(step, left):
    # From 62 down to 8 at step 12: of the 54 that are to go, (2/3)^3 = 8/27 are still there at step 4: 8 + 16.
    done = decide(
        Gradual(sparsity=54 / 62, until=12, period=4), row([float(i) for i in range(1, 63)], goal=[8]), step=step
    )
    assert done.gone == [list(range(62 - left))]
    assert done.come == [[]]


def test_gradual_pruning_takes_the_smallest_of_each_layer_down_to_its_own_count():
    done = decide(
        Gradual(sparsity=0.5, until=10),
        row([0.4, -0.1, 0.3, 0.2], [5.0, 7.0, -8.0, 6.0], goal=[1, 3]),
        step=10,
    )
    assert done.gone == [[1, 2, 3], [0]]
    assert done.grown == [0, 0]


def test_gradual_pruning_waits_for_its_beginning():
    # Half way between step 10 and step 20: 1 - (1/2)^3 = 7/8 of the 8 that are to go.
    pruning = Gradual(sparsity=0.5, begin=10, until=20)
    sixteen = row([float(i) for i in range(1, 17)], goal=[8])
    assert [decide(pruning, sixteen, step=step).pruned for step in (0, 10, 15, 20)] == [[0], [0], [7], [8]]


def test_gradual_pruning_never_grows_back_where_less_is_left_than_planned():
    done = decide(Gradual(sparsity=0.5, until=10), row([0.4, _, _, _], goal=[2]), step=5)
    assert (done.pruned, done.grown) == ([0], [0])
