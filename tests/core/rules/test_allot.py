"""Allot: how many units each layer gets back."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import random
from regrow.core.row import Tally
from regrow.core.rules import allot
from strategies import with_pruned


def tally(*, units, active, pruned, sizes=None, budget=None) -> Tally:
    sizes = sizes or (1,) * len(units)
    budget = budget or sum(n * size for n, size in zip(active, sizes, strict=True))
    return Tally(tuple(sizes), tuple(units), tuple(active), tuple(active), budget, budget, tuple(pruned))


def test_by_survivors_the_stronger_layer_wins():
    # The first lost 1 of 4, the second 3 of 4: the 4 that went come back as 3 : 1.
    assert allot.by_survivors(tally(units=(8, 8), active=(4, 4), pruned=(1, 3))) == [3, 1]


def test_by_survivors_with_a_remainder():
    # Survivors 5 and 3, 3 to share: quotas 1.875 and 1.125.
    assert allot.by_survivors(tally(units=(16, 16), active=(6, 5), pruned=(1, 2))) == [2, 1]


def test_by_survivors_a_full_layer_passes_its_share_on():
    # Survivors 6 and 2, 4 to share as 3 : 1, but the first has a single free place.
    assert allot.by_survivors(tally(units=(8, 8), active=(7, 5), pruned=(1, 3))) == [1, 3]


def test_by_survivors_counts_weights_where_units_differ_in_size():
    # One kernel of 4 survives here and four single weights there; 8 weights went, 4 each: one kernel, four weights.
    assert allot.by_survivors(tally(units=(8, 16), active=(2, 8), pruned=(1, 4), sizes=(4, 1))) == [1, 4]


def test_by_survivors_spends_what_an_earlier_pass_could_not():
    # Two weights of the budget were left over by kernels of 4; single weights take them.
    assert allot.by_survivors(tally(units=(4, 8), active=(2, 3), pruned=(0, 0), sizes=(4, 1), budget=13)) == [0, 2]


def test_by_merit_in_proportion_to_a_layers_worth():
    assert allot.by_merit(tally(units=(8, 8), active=(4, 4), pruned=(2, 2)), [0.3, 0.1]) == [3, 1]


def test_by_merit_without_any_merit_goes_by_room():
    assert allot.by_merit(tally(units=(8, 8), active=(2, 5), pruned=(1, 2)), [0.0, 0.0]) == [2, 1]


def test_by_room_fills_what_is_left_where_all_of_it_is_needed():
    assert allot.by_room(tally(units=(8, 8), active=(6, 7), pruned=(1, 2)), key=0) == [2, 1]


def test_by_room_needs_no_room_where_nothing_went():
    assert allot.by_room(tally(units=(8, 8), active=(8, 8), pruned=(0, 0)), key=0) == [0, 0]


def test_by_room_falls_as_a_uniform_draw_of_places_would():
    # Two draws from 1 + 3 free places: the single one is among them in 3 of 6 equally likely pairs.
    case = tally(units=(4, 4), active=(3, 1), pruned=(2, 0))
    seen = Counter(tuple(allot.by_room(case, random.key(0, step))) for step in range(2000))
    assert set(seen) == {(0, 2), (1, 1)}
    assert abs(seen[1, 1] - 1000) < 5 * 22.4


@st.composite
def tallies(draw, sizes=(1,)):
    n = draw(st.integers(1, 5))
    units = [draw(st.integers(1, 30)) for _ in range(n)]
    active = [draw(st.integers(1, u)) for u in units]
    pruned = [draw(st.integers(0, a - 1)) for a in active]
    unit_sizes = [draw(st.sampled_from(sizes)) for _ in range(n)]
    case = tally(units=units, active=active, pruned=pruned, sizes=unit_sizes)
    room = sum(free * size for free, size in zip(case.free, unit_sizes, strict=True))
    return case if case.open_weights <= room else with_pruned(case, *[0] * n)


@given(tallies())
@settings(deadline=None)
def test_by_survivors_gives_back_exactly_what_went(case):
    grown = allot.by_survivors(case)
    assert sum(grown) == sum(case.pruned)
    assert all(0 <= n <= free for n, free in zip(grown, case.free, strict=True))


@given(tallies(sizes=(1, 4, 9)))
@settings(deadline=None)
def test_by_survivors_with_large_units_stays_within_one_unit_below_the_budget(case):
    grown = allot.by_survivors(case)
    active = sum((s + g) * size for s, g, size in zip(case.survivors, grown, case.unit_sizes, strict=True))
    assert case.budget - max(case.unit_sizes) < active <= case.budget


@given(tallies(), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_by_room_gives_back_exactly_what_went_and_is_a_function_of_its_key(case, key):
    grown = allot.by_room(case, key)
    assert sum(grown) == sum(case.pruned)
    assert all(0 <= n <= free for n, free in zip(grown, case.free, strict=True))
    assert allot.by_room(case, key) == grown


@given(tallies(sizes=(1, 4, 9)), st.data())
@settings(deadline=None)
def test_by_merit_stays_within_one_unit_below_the_budget_whatever_the_merits(case, data):
    merits = [data.draw(st.floats(0, 1e30)) for _ in case.active]
    grown = allot.by_merit(case, merits)
    active = sum((s + g) * size for s, g, size in zip(case.survivors, grown, case.unit_sizes, strict=True))
    assert case.budget - max(case.unit_sizes) < active <= case.budget
    assert all(0 <= n <= free for n, free in zip(grown, case.free, strict=True))
