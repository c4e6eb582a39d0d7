"""MEST on a row of eights, worked out by hand."""

import pytest

from regrow import MEST
from strategies import decide, row

_ = None  # a free place

EIGHTS = row(
    [0.9, _, 0.1, _, -0.2, _, 0.3, _],
    [0.5, -0.5, _, _, 0.5, _, 0.5, _],
    gradient=[[0, 9, -1, 9, 0, 9, 0.2, 9], [0.3, 0, 9, 9, -0.1, 9, -0.2, 9]],
)


def test_mest_prunes_small_weights_that_the_loss_does_not_ask_to_change():
    # abs(w) + abs(g) / 2 is .9, .6, .2, .4 and .65, .5, .55, .6: the smallest weight, .1, stays for its gradient.
    done = decide(MEST(sparsity=0.5, fraction=0.5, mix=0.5), EIGHTS)
    assert done.gone == [[4, 6], [1, 4]]


def test_mest_regrows_as_many_at_random_in_the_same_layer():
    mest = MEST(sparsity=0.5, fraction=0.25, mix=0.5)
    drawn = {tuple(map(tuple, decide(mest, EIGHTS, seed=seed).come)) for seed in range(200)}
    assert drawn == {((first,), (second,)) for first in (1, 3, 5, 7) for second in (2, 3, 5, 7)}


def test_without_a_mix_mest_goes_by_magnitude():
    assert decide(MEST(sparsity=0.5, fraction=0.5, mix=0.0), EIGHTS).gone == [[2, 4], [0, 1]]


def test_mest_asks_for_the_gradients_of_active_weights_only():
    assert MEST(sparsity=0.5).needs == {"gradient"}
    mest = MEST(sparsity=0.5, fraction=0.5, mix=0.5)
    assert decide(mest, EIGHTS, is_listed=True) == decide(mest, EIGHTS)


@pytest.mark.parametrize(("step", "pruned"), [(1, [2, 2]), (50, [1, 1]), (100, [0, 0])])
def test_mest_prunes_less_and_less(step, pruned):
    # 0.5 of 4 falls along a cosine: 2 at the start, 1 half way, none at the end.
    assert decide(MEST(sparsity=0.5, fraction=0.5, until=100), EIGHTS, step=step).pruned == pruned


def test_mest_prunes_no_more_than_a_layer_has_free_places():
    full = row([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, _])
    assert decide(MEST(sparsity=0.1, fraction=0.9), full).gone == [[0]]
