"""GSE on a row of eights, worked out by hand, and what it draws."""

import pytest

from regrow import GSE
from strategies import decide, row

_ = None  # a free place

EIGHTS = row(
    [0.9, _, 0.1, _, -0.2, _, 0.8, _],
    [-0.3, 0.7, _, _, 0.5, _, 0.6, _],
    gradient=[[9, 1, 9, -4, 9, 3, -9, 2], [0, 0, 5, 7, 0, -8, 0, 6]],
)


class Named(GSE):
    """Candidates that are written out rather than drawn."""

    def candidates(self, tally, step, key):
        return EIGHTS.units([5, 1, 0, 2, 1], [7, 2, 7, 3])


@pytest.mark.parametrize("is_listed", [False, True])
def test_gse_replaces_the_smallest_by_the_candidates_with_the_largest_gradient(is_listed):
    # Half of 4 go. Free candidates are 1 and 5, with gradients 1 and 3, though 3 would have 4; and 2, 3 and 7, with 5,
    # 7 and 6, though 5 would have -8.
    done = decide(Named(sparsity=0.5, fraction=0.5), EIGHTS, is_listed=is_listed)
    assert done.gone == [[2, 4], [0, 4]]
    assert done.come == [[1, 5], [3, 7]]


def test_gse_prunes_no_more_than_there_are_free_candidates():
    # Three of 4 would go: of the first layer only two free places are candidates, and the two smallest go.
    done = decide(Named(sparsity=0.5, fraction=0.75), EIGHTS)
    assert done.gone == [[2, 4], [0, 4, 6]]
    assert done.come == [[1, 5], [2, 3, 7]]


def test_gse_draws_as_many_candidates_as_there_are_active_units_anywhere_in_each_layer():
    drawn = [GSE(sparsity=0.5).candidates(EIGHTS.tally, 1, key) for key in range(200)]
    assert {tuple(units.counts) for units in drawn} == {(4, 4)}
    for layer in (0, 1):
        seen = [place for units in drawn for place in EIGHTS.places(units)[layer]]
        assert len(seen) == 800
        assert all(60 < seen.count(place) < 140 for place in range(8)), "100 times each, more or less"


@pytest.mark.parametrize(("sample", "counts"), [(0.5, [2, 1, 0]), (0.6, [3, 1, 0]), (3, [12, 3, 0])])
def test_the_sample_is_a_multiple_of_what_is_active_and_none_where_nothing_is_free(sample, counts):
    eights = row([0.9, _, 0.1, _, -0.2, _, 0.8, _], [0.5, _, _, _], [0.1, 0.2])
    assert list(GSE(sparsity=0.5, sample=sample).candidates(eights.tally, 1, 0).counts) == counts


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_sample_that_is_large_enough_makes_it_rigl(is_listed):
    gse = GSE(sparsity=0.5, fraction=0.5, sample=50)
    done = decide(gse, EIGHTS, is_listed=is_listed)
    assert done.gone == [[2, 4], [0, 4]]
    assert done.come == [[3, 5], [3, 5]]


@pytest.mark.parametrize(("step", "pruned"), [(1, [2, 2]), (50, [1, 1]), (100, [0, 0])])
def test_gse_prunes_less_and_less(step, pruned):
    # 0.5 of 4 falls along a cosine: 2 at the start, 1 half way, none at the end.
    assert decide(GSE(sparsity=0.5, fraction=0.5, sample=9, until=100), EIGHTS, step=step).pruned == pruned


def test_gse_asks_for_the_gradients_of_candidates_only():
    assert GSE(sparsity=0.5).needs == {"sampled_gradient"}
    assert GSE(sparsity=0.5).effects() == []
