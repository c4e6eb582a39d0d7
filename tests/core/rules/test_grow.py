"""Grow: scores of free places, of which the largest come."""

import pytest

from regrow.core.rules import grow
from strategies import row

_ = None  # a free place


def test_the_running_mean_of_a_gradient_counts_from_either_side():
    momentum = row(
        [_, 0.5, _, _],
        [_, _, 0.5, _],
        gradient=[[9, 9, 0, 9], [9, 0, 9, 9]],
        mean_gradient=[[1, 9, -3, -2], [5, -8, 9, 6]],
    )
    come = momentum.evidence().largest_free([1, 2], grow.mean_gradient_magnitude)
    assert momentum.places(come) == [[2], [1, 3]]


def test_the_momentum_of_active_weights_has_a_mean():
    # The active weights of the first layer have momenta of 1 and -4, that of the second 2; free places do not count.
    evidence = row(
        [0.5, _, 0.5, _],
        [_, _, _, 0.5],
        mean_gradient=[[1, 100, -4, 100], [100, 100, 100, 2]],
    ).evidence()
    assert evidence.mean_of_each(grow.mean_gradient_magnitude) == pytest.approx([2.5, 2])
