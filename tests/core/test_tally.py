"""The tally: the network in whole numbers."""

from regrow.core.tally import Tally
from strategies import row, with_pruned

MIXED = Tally(
    unit_sizes=(4, 1),
    num_units=(3, 8),
    active=(2, 5),
    goal=(1, 4),
    target=8,
    budget=14,
    pruned=(1, 2),
)


def test_free_places_are_those_from_before_pruning():
    # What was just pruned does not count as a place to grow.
    tally = with_pruned(row([0.5, None, -2.0, 1.0], [None, None, None, 1.0]).tally, 2, 0)
    assert tally.free == [1, 3]
    assert tally.survivors == [1, 1]


def test_what_went_may_grow_again():
    tally = with_pruned(row([0.5, None, -2.0, 1.0], [None, None, None, 1.0]).tally, 2, 0)
    assert tally.open_weights == 2


def test_weights_are_units_times_their_size():
    assert MIXED.weights_in([2, 5]) == 13
    assert MIXED.weights_in(MIXED.survivors) == 7


def test_what_an_earlier_pass_left_over_may_grow_too():
    # 13 of a budget of 14 are held, 6 go: 7 survive.
    assert MIXED.open_weights == 7


def test_some_of_the_layers_have_what_they_hold_as_their_budget():
    own = MIXED.of([1])
    assert (own.num_units, own.active, own.goal, own.pruned) == ((8,), (5,), (4,), (2,))
    assert (own.budget, own.target, own.open_weights) == (5, 5, 2)


def test_the_order_of_the_layers_asked_for_is_kept():
    assert MIXED.of([1, 0]).unit_sizes == (1, 4)
