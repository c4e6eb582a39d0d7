"""apportion: whole numbers in given proportions, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.apportion import apportion

PLENTY = 10**9


@st.composite
def problems(draw, *, sizes: bool = False):
    """Shares, a total that fits, capacities and unit sizes."""
    n = draw(st.integers(1, 8))
    share = st.one_of(
        st.just(0.0),
        st.integers(0, 1000).map(float),
        st.floats(0, 1e300, allow_subnormal=True),
        st.sampled_from([5e-324, 1e-310, 1e308]),
    )
    shares = draw(st.lists(share, min_size=n, max_size=n))
    capacities = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    units = draw(st.lists(st.sampled_from([1, 2, 3, 9, 25]), min_size=n, max_size=n)) if sizes else [1] * n
    room = sum(c * size for c, size in zip(capacities, units, strict=True))
    return shares, draw(st.integers(0, room)), capacities, units


def test_whole_quotas_are_handed_out_as_they_are():
    assert apportion([1, 2, 5], 8, [PLENTY] * 3) == [1, 2, 5]


def test_the_last_ones_go_to_the_largest_remainders():
    # Quotas of 8 weights in the ratio 5 : 3 : 2 are 4.0, 2.4 and 1.6: whole parts 4 + 2 + 1, one left for the third.
    assert apportion([5, 3, 2], 8, [PLENTY] * 3) == [4, 2, 2]


def test_equal_remainders_are_served_from_the_left():
    # Three times 8/3 = 2.67: two are left over for three layers.
    assert apportion([1, 1, 1], 8, [PLENTY] * 3) == [3, 3, 2]


def test_what_a_full_layer_cannot_take_goes_to_the_others_in_proportion():
    # Quotas 4, 2, 2; the first holds only 1, so 7 are shared 1 : 1 between the others.
    assert apportion([4, 2, 2], 8, [1, PLENTY, PLENTY]) == [1, 4, 3]


def test_overflow_may_fill_further_layers():
    # Quotas 4, 3, 1. The first is full at 1; the next round's quotas are 5.25 and 1.75, which fills the second at 4.
    assert apportion([4, 3, 1], 8, [1, 4, PLENTY]) == [1, 4, 3]


def test_layers_without_a_share_get_nothing_while_others_have_room():
    assert apportion([1, 0, 0], 8, [8, 8, 8]) == [8, 0, 0]


def test_layers_without_a_share_take_the_rest_in_proportion_to_their_room():
    # The first is full at 2; of the 6 that are left 4 : 2 go where there is room for 8 and 4.
    assert apportion([1, 0, 0], 8, [2, 8, 4]) == [2, 4, 2]


def test_where_nobody_has_a_share_room_decides():
    assert apportion([0, 0], 3, [8, 4]) == [2, 1]


def test_a_total_as_large_as_the_room_fills_everything():
    assert apportion([1e-300, 0, 7], 8, [3, 1, 4]) == [3, 1, 4]


def test_nothing_is_shared_as_nothing():
    assert apportion([3, 0], 0, [8, 8]) == [0, 0]
    assert apportion([], 0, []) == []


def test_denormal_shares_keep_their_ratio():
    tiny = 5e-324
    assert apportion([3 * tiny, tiny], 8, [PLENTY] * 2) == [6, 2]


def test_a_share_too_small_to_count_beside_a_huge_one_is_still_a_share():
    assert apportion([1e308, 1e-308, 0], 8, [7, 8, 8]) == [7, 1, 0]


def test_shares_need_not_add_up_in_floating_point():
    # 0.1 + 0.2 != 0.3 in floats; the counts still add up.
    assert sum(apportion([0.1, 0.2, 0.3], 1_000_003, [PLENTY] * 3)) == 1_000_003


def test_large_units_never_exceed_the_total():
    # Kernels of 9 weights and single weights, half each of 20: one kernel (9) and 11 weights.
    assert apportion([1, 1], 20, [8, 16], [9, 1]) == [1, 11]


def test_large_units_fall_short_by_less_than_one():
    # Only kernels of 9: 20 weights pay for two of them.
    assert apportion([1, 1], 20, [8, 8], [9, 9]) == [1, 1]


@pytest.mark.parametrize("shares", [[-1.0, 2.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_shares_must_be_finite_and_not_negative(shares):
    with pytest.raises(ValueError, match="finite and not negative"):
        apportion(shares, 1, [8, 8])


@pytest.mark.parametrize("total", [-1, 17])
def test_the_total_must_fit(total):
    with pytest.raises(ValueError, match="room for 16"):
        apportion([1, 1], total, [8, 8])


@pytest.mark.parametrize(("capacities", "sizes"), [([-1, 8], [1, 1]), ([8, 8], [0, 1])])
def test_capacities_and_sizes_must_make_sense(capacities, sizes):
    with pytest.raises(ValueError, match="capacities must not be negative and sizes must be positive"):
        apportion([1, 1], 1, capacities, sizes)


def test_there_is_one_entry_per_layer():
    with pytest.raises(ValueError, match="one entry per layer"):
        apportion([1, 1], 1, [8])


@given(problems())
@settings(deadline=None)
def test_single_weights_sum_to_exactly_the_total(problem):
    shares, total, capacities, _ = problem
    assert sum(apportion(shares, total, capacities)) == total


@given(problems(sizes=True))
@settings(deadline=None)
def test_no_layer_gets_more_than_it_holds(problem):
    shares, total, capacities, sizes = problem
    counts = apportion(shares, total, capacities, sizes)
    assert all(0 <= count <= capacity for count, capacity in zip(counts, capacities, strict=True))


@given(problems(sizes=True))
@settings(deadline=None)
def test_the_shortfall_is_less_than_any_unit_that_has_room(problem):
    shares, total, capacities, sizes = problem
    counts = apportion(shares, total, capacities, sizes)
    left = total - sum(n * size for n, size in zip(counts, sizes, strict=True))
    open_sizes = [size for n, c, size in zip(counts, capacities, sizes, strict=True) if n < c]
    assert 0 <= left < min(open_sizes, default=1)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=8).filter(any), st.integers(0, 10**12))
@settings(deadline=None)
def test_where_nothing_is_full_counts_are_the_quota_rounded_down_or_up(shares, total):
    counts = apportion(shares, total, [10**13] * len(shares))
    whole = [Fraction(share) for share in shares]
    assert all(abs(n - total * share / sum(whole)) < 1 for n, share in zip(counts, whole, strict=True))


@given(problems())
@settings(deadline=None)
def test_a_larger_share_and_no_less_room_never_gets_less(problem):
    shares, total, capacities, _ = problem
    counts = apportion(shares, total, capacities)
    ranked = sorted(zip(shares, capacities, counts, strict=True))
    for share, capacity, count in ranked:
        assert all(n >= count for s, c, n in ranked if s > share and c >= capacity)


@given(problems(), st.integers(0, 7), st.floats(1, 1e6))
@settings(deadline=None)
def test_raising_a_share_never_costs_its_layer_a_weight(problem, which, factor):
    shares, total, capacities, _ = problem
    which %= len(shares)
    raised = [min(share * factor, 1e308) if i == which else share for i, share in enumerate(shares)]
    before = apportion(shares, total, capacities)[which]
    if raised[which] >= shares[which]:
        assert apportion(raised, total, capacities)[which] >= before


@given(problems(sizes=True), st.sampled_from([0.5, 2.0, 1024.0]))
@settings(deadline=None)
def test_only_the_ratio_of_shares_matters(problem, factor):
    shares, total, capacities, sizes = problem
    shares = [min(max(share, 1e-100), 1e100) if share else 0.0 for share in shares]
    scaled = [share * factor for share in shares]
    assert apportion(scaled, total, capacities, sizes) == apportion(shares, total, capacities, sizes)


@given(problems(sizes=True))
@settings(deadline=None)
def test_a_layer_without_room_changes_nothing(problem):
    shares, total, capacities, sizes = problem
    counts = apportion(shares, total, capacities, sizes)
    assert apportion([*shares, 5.0], total, [*capacities, 0], [*sizes, 1]) == [*counts, 0]
