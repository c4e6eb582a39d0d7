"""DSR on a row of eights, worked out by hand, and how its threshold follows the target."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow import DSR, METHODS
from strategies import decide, row, with_pruned

ALL = sorted(METHODS)
INF, NAN = float("inf"), float("nan")
_ = None  # a free place


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
