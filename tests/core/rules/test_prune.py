"""Prune: how many units of each layer go, and by what score."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.rules import prune
from strategies import make_row, row

_ = None  # a free place


def below(threshold: float, *layers: list[float | None]) -> tuple[list[int], list[int]]:
    units = prune.below_threshold(row(*layers).evidence(), threshold)
    return units.positions.tolist(), units.counts


def test_below_threshold_takes_all_active_units_that_are_smaller_and_counts_them_per_layer():
    assert below(0.25, [0.9, -0.1, 0.4, -0.2], [0.3, _, 0.05, 0.6]) == ([1, 3, 6], [2, 1])


def test_a_weight_as_large_as_the_threshold_stays():
    assert below(0.25, [0.25, 0.2499, 0.2501, -0.25]) == ([1], [1])


def test_a_threshold_is_the_same_number_in_any_precision():
    # 0.7 in single precision is a little less than 0.7; where it is the threshold, neither goes.
    for dtype in (torch.float32, torch.float64):
        weights = torch.tensor([0.7, 0.9], dtype=torch.float32).to(dtype)
        evidence = make_row([weights], [torch.ones(2, dtype=torch.bool)]).evidence()
        assert prune.below_threshold(evidence, 0.7).counts == [0]


def test_distance_from_zero_is_negative_on_the_wrong_side():
    evidence = row([0.5, -0.25, 1.0, -2.0], sign=["++--"]).evidence()
    assert prune.distance_from_zero(evidence).tolist() == [0.5, -0.25, -1, 2]


def test_weights_on_the_wrong_side_of_zero_are_below_it():
    walked = row([0.9, -0.1, 0.4, -0.2, 0.3, -0.8, 0.05, 0.6], sign=["++--+--+"])
    assert walked.evidence().below(0.0, prune.distance_from_zero).positions.tolist() == [1, 2, 6]


def test_a_weight_at_zero_has_not_crossed():
    still = row([1.0, 1.0, 1.0, 1.0], sign=["++--"])
    still.tensors[0].copy_(torch.tensor([0.0, -0.0, 0.0, -0.0]))
    assert still.evidence().below(0.0, prune.distance_from_zero).counts == [0]


def test_a_small_weight_that_the_loss_asks_to_change_may_weigh_more_than_a_large_one():
    evidence = row([0.25, -0.75, 0.5, -1.0], gradient=[[-4, 1, 0, 2]]).evidence()
    # abs(w) + abs(g) / 4
    assert prune.magnitude_and_gradient(evidence, 0.25).tolist() == [1.25, 1, 0.5, 1.5]


def test_mixed_with_nothing_of_the_gradient_it_is_the_magnitude():
    evidence = row([0.25, -0.75], gradient=[[-4, 1]]).evidence()
    assert prune.magnitude_and_gradient(evidence, 0.0).tolist() == [0.25, 0.75]


def test_a_fraction_of_each_layer():
    assert prune.fraction_of_each(0.25, [8, 40], [100, 100]) == [2, 10]


def test_no_layer_loses_its_last_unit():
    assert prune.fraction_of_each(1.0, [1, 8], [100, 100]) == [0, 7]


def test_no_layer_loses_more_than_can_grow_again():
    assert prune.fraction_of_each(0.5, [8, 8, 8], [0, 3, 100]) == [0, 3, 4]


@given(st.floats(0, 1), st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1))
@settings(deadline=None)
def test_a_fraction_leaves_something_and_finds_room(fraction, layers):
    active, free = zip(*layers, strict=True)
    for gone, n, room in zip(prune.fraction_of_each(fraction, active, free), active, free, strict=True):
        assert 0 <= gone <= min(n - 1, room)
        assert gone <= fraction * n + 0.5
