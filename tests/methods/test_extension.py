"""A method of one's own, made of what `regrow.methods` has, on a row of eights."""

from collections.abc import Sequence

import pytest

import regrow
from regrow.methods import METHODS, Evidence, Memory, Method, Tally, Units, method, prune
from strategies import decide, row

_ = None  # a free place


@pytest.fixture(params=["tensor", "function"])
def saliency(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Method]:
    """Its score as a tensor of the whole row, or as a function of a chunk."""
    monkeypatch.setitem(METHODS, "Saliency", Method)  # so that the name is gone again afterwards

    @method
    class Saliency(Method):
        """Prune by weight times gradient of the active weights, grow at random in place."""

        fraction: float = 0.3
        needs = frozenset({"gradient"})

        def prune_counts(self, tally: Tally, step: int) -> list[int]:
            return prune.fraction_of_each(self.fraction, tally.active, tally.free)

        def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
            if request.param == "function":
                return evidence.smallest(counts, score=lambda units: (units.weight * units.gradient).abs())
            return evidence.smallest(counts, score=(evidence.weight * evidence.gradient).abs())

    return Saliency


EIGHTS = row(
    [0.9, _, 0.1, _, -0.2, _, 0.3, _],
    [0.5, -0.5, 0.5, _, 0.5, _, 0.5, _],
    gradient=[[1, 9, -8, 9, 5, 9, 0, 9], [3, -1, 2, 9, -4, 9, 5, 9]],
)


def test_what_saves_the_loss_least_goes_and_as_much_comes_back(saliency):
    # Products .9, .8, 1, 0 and 1.5, .5, 1, 2, 2.5; half of 4 and of 5 (2.5 is rounded to the even number).
    done = decide(saliency(sparsity=0.5, fraction=0.5), EIGHTS)
    assert done.gone == [[2, 6], [1, 2]]
    assert done.grown == [2, 2]
    assert set(done.come[0]) <= {1, 3, 5, 7}


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("is_listed", [False, True])
def test_it_does_the_same_in_every_storage_and_however_the_row_is_cut(saliency, limit, is_listed):
    own = saliency(sparsity=0.5, fraction=0.5)
    assert decide(own, EIGHTS, limit=limit, is_listed=is_listed) == decide(own, EIGHTS)


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("saliency", ["tensor"], indirect=True)
def test_it_keeps_every_promise(saliency, storage):
    regrow.testing.check_method(saliency(sparsity=0.8), storage=storage)


def test_a_method_that_says_nothing_keeps_its_topology_through_every_rewiring(monkeypatch):
    monkeypatch.setitem(METHODS, "Nothing", Method)

    @method
    class Nothing(Method):
        pass

    done = decide(Nothing(sparsity=0.5), EIGHTS)
    assert done.gone == done.come == [[], []]
    assert done.memory == {}
