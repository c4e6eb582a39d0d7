"""Prune: which units go."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.rules import prune
from strategies import row

WEIGHTS = torch.tensor([0.9, -0.1, 0.4, -0.2, 0.3, -0.8, 0.05, 0.6])


def where(flags: torch.Tensor) -> list[int]:
    return flags.nonzero().flatten().tolist()


def below(threshold: float, *layers: list[float | None]) -> tuple[list[int], list[int]]:
    (stretch,) = row(*layers).stretches()
    positions, counts = prune.below_threshold(stretch, threshold)
    return positions.tolist(), counts


def test_below_threshold_takes_all_active_units_that_are_smaller_and_counts_them_per_layer():
    assert below(0.25, [0.9, -0.1, 0.4, -0.2], [0.3, None, 0.05, 0.6]) == ([1, 3, 6], [2, 1])


def test_a_weight_as_large_as_the_threshold_stays():
    assert below(0.25, [0.25, 0.2499, 0.2501, -0.25]) == ([1], [1])


def test_smallest_of_each_takes_active_units_only():
    # The first layer loses .1 of .9, .1, .4; the second .05 and .3 of .3, .05, .6.
    (stretch,) = row([0.9, -0.1, 0.4, None], [0.3, None, 0.05, 0.6]).stretches()
    positions, counts = prune.smallest_of_each(stretch, [1, 2])
    assert (positions.tolist(), counts) == ([1, 4, 6], [1, 2])


def test_smallest_takes_from_each_layer_its_own():
    # Two layers of four: the smallest one of the first, the smallest two of the second.
    assert where(prune.smallest(WEIGHTS.abs(), [4, 4], [1, 2])) == [1, 4, 6]


def test_smallest_as_one_layer_is_smallest_globally():
    assert where(prune.smallest(WEIGHTS.abs(), [8], [3])) == [1, 3, 6]


def test_smallest_takes_nothing_where_nothing_is_to_go():
    assert where(prune.smallest(WEIGHTS.abs(), [4, 4], [0, 0])) == []


def test_equal_weights_go_from_the_left():
    assert where(prune.smallest(torch.full((8,), 0.5), [5, 3], [2, 1])) == [0, 1, 5]


def test_sign_crossed_takes_weights_on_the_wrong_side_of_zero():
    #                       .9     -.1    .4    -.2    .3    -.8    .05   .6
    signs = torch.tensor([True, True, False, False, True, False, False, True])
    assert where(prune.sign_crossed(WEIGHTS, signs)) == [1, 2, 6]


def test_a_weight_at_zero_has_not_crossed():
    assert (
        where(prune.sign_crossed(torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.tensor([True, True, False, False]))) == []
    )


def test_at_most_spares_the_largest_of_those_that_were_to_go():
    gone = torch.tensor([1, 1, 1, 0, 1, 0, 1, 0]).bool()
    # The first layer would lose .9, .1 and .4 but only two may go; the second loses .3 and .05 as it was to.
    assert where(prune.at_most(gone, WEIGHTS.abs(), [4, 4], [2, 3])) == [1, 2, 4, 6]


def test_a_limit_of_none_spares_all():
    assert where(prune.at_most(torch.ones(8).bool(), WEIGHTS.abs(), [4, 4], [0, 1])) == [6]


def test_a_fraction_of_each_layer():
    assert prune.fraction_of_each(0.25, [8, 40], [100, 100]) == [2, 10]


def test_no_layer_loses_its_last_unit():
    assert prune.fraction_of_each(1.0, [1, 8], [100, 100]) == [0, 7]


def test_no_layer_loses_more_than_can_grow_again():
    assert prune.fraction_of_each(0.5, [8, 8, 8], [0, 3, 100]) == [0, 3, 4]


counts_and_values = st.lists(st.integers(1, 8), min_size=1, max_size=4).flatmap(
    lambda counts: st.tuples(
        st.just(counts), st.lists(st.integers(0, 4), min_size=sum(counts), max_size=sum(counts)).map(torch.tensor)
    )
)


@given(counts_and_values, st.data())
@settings(deadline=None)
def test_what_goes_is_never_larger_than_what_stays(case, data):
    counts, magnitude = case
    num_gone = [data.draw(st.integers(0, n)) for n in counts]
    flags = prune.smallest(magnitude.float(), counts, num_gone)
    for part, sizes, k in zip(flags.split(counts), magnitude.split(counts), num_gone, strict=True):
        assert int(part.sum()) == k
        if 0 < k < len(part):
            assert sizes[part].max() <= sizes[~part].min()


@given(counts_and_values, st.data())
@settings(deadline=None)
def test_at_most_keeps_to_its_limits_and_adds_nothing(case, data):
    counts, magnitude = case
    gone = torch.tensor(data.draw(st.lists(st.booleans(), min_size=sum(counts), max_size=sum(counts))))
    limits = [data.draw(st.integers(0, n)) for n in counts]
    spared = prune.at_most(gone, magnitude.float(), counts, limits)
    assert not (spared & ~gone).any()
    for before, after, limit in zip(gone.split(counts), spared.split(counts), limits, strict=True):
        assert int(after.sum()) == min(int(before.sum()), limit)


@given(st.floats(0, 1), st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1))
@settings(deadline=None)
def test_a_fraction_leaves_something_and_finds_room(fraction, layers):
    active, free = zip(*layers, strict=True)
    for gone, n, room in zip(prune.fraction_of_each(fraction, active, free), active, free, strict=True):
        assert 0 <= gone <= min(n - 1, room)
        assert gone <= fraction * n + 0.5
