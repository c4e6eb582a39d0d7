"""Grow: which free places come."""

from collections import Counter
from math import comb, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import random
from regrow.core.row import cut_into_chunks
from regrow.core.rules import grow
from regrow.core.units import cut
from strategies import CPU, row, rows


def draw(active: list[torch.Tensor], wanted: list[int], *, limit: int | None = None, seed: int = 0) -> list[list[int]]:
    """Places that come in each layer, ascending, cut into chunks of at most `limit` units."""
    layers = [cut(f"layer{i}", flags, "weight") for i, flags in enumerate(active)]
    found = []
    for chunk in cut_into_chunks(layers, [CPU] * len(layers), limit):
        flat = torch.cat(list(chunk.of(active)))
        free = [int((~flags).sum()) for flags in chunk.of(active)]
        places = grow.at_random(chunk, chunk.of(wanted), free, flat, random.key(seed)).tolist()
        assert len(places) == sum(chunk.of(wanted))
        for start, end in zip(chunk.offsets, chunk.offsets[1:], strict=False):
            found.append(sorted(place - start for place in places if start <= place < end))
    return found


def flags(pattern: str) -> torch.Tensor:
    """A topology as a string: x is active."""
    return torch.tensor([mark == "x" for mark in pattern])


def chi_square(counts: Counter, num_kinds: int) -> float:
    expected = counts.total() / num_kinds
    seen = sum((n - expected) ** 2 / expected for n in counts.values())
    return seen + (num_kinds - len(counts)) * expected


def bound(num_kinds: int) -> float:
    """Five standard deviations above the mean of chi-square."""
    return num_kinds - 1 + 5 * sqrt(2 * (num_kinds - 1)) + 5


def test_where_all_free_places_are_wanted_all_come():
    assert draw([flags("x..xx.x."), flags("xxxxxxx.")], [4, 1]) == [[1, 2, 5, 7], [7]]


def test_nothing_comes_where_nothing_is_wanted():
    assert draw([flags("x..xx.x."), flags("xxxxxxxx")], [0, 0]) == [[], []]


def test_only_free_places_come():
    (places,) = draw([flags("x" * 1000 + "." * 8)], [1])
    assert places[0] >= 1000


def test_the_same_key_draws_the_same_and_another_key_something_else():
    topology = [flags("." * 100)]
    assert draw(topology, [10], seed=1) == draw(topology, [10], seed=1)
    assert draw(topology, [10], seed=1) != draw(topology, [10], seed=2)


def test_layers_of_one_row_draw_independently():
    one, other = draw([flags("." * 100)] * 2, [10, 10])
    assert one != other


def test_the_generators_of_torch_are_not_touched():
    before = torch.get_rng_state()
    draw([flags("." * 100)], [10])
    draw([flags("." * 100)], [90])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("pattern", "wanted"), [("x.x...x..x..", 1), ("xx..xx.xxx.x.xx.xx", 1), ("x....x", 2), (".x.x.x", 2)]
)
def test_every_set_of_free_places_is_equally_likely(pattern, wanted):
    topology, num_layers = flags(pattern), 2000
    drawn = draw([topology] * num_layers, [wanted] * num_layers, limit=500 * len(topology))
    kinds = comb(pattern.count("."), wanted)
    assert chi_square(Counter(map(tuple, drawn)), kinds) < bound(kinds)


def test_pairs_drawn_from_a_sequence_are_equally_likely():
    # 2 of 16 is few enough to be found by drawing: 120 pairs.
    topology = flags("xx..x....x....xx..x....")
    drawn = draw([topology] * 6000, [2] * 6000, limit=500 * len(topology))
    assert chi_square(Counter(map(tuple, drawn)), 120) < bound(120)


def test_the_many_are_found_as_evenly_as_the_few():
    # Over many layers each of 64 places comes equally often, just below and above an eighth.
    for wanted in (8, 9):
        drawn = draw([flags("." * 64)] * 500, [wanted] * 500)
        assert chi_square(Counter(place for places in drawn for place in places), 64) < bound(64)


@pytest.mark.parametrize("factor", [0.05, 0.5, 3, 40])
def test_how_many_draws_are_made_at_once_changes_nothing(monkeypatch, factor):
    # Too few make it draw again, more than needed are ignored.
    topology, wanted = [flags("x." * 200), flags("." * 50), flags("x" * 90 + "." * 10)], [20, 6, 1]
    expected = draw(topology, wanted)
    usual = grow._draws_for
    monkeypatch.setattr(grow, "_draws_for", lambda *numbers: max(1, int(factor * usual(*numbers))))
    assert draw(topology, wanted) == expected


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_exactly_as_many_different_free_places_come_whatever_the_chunks(data):
    seed = data.draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    sizes = data.draw(st.lists(st.integers(1, 120), min_size=1, max_size=5))
    density = data.draw(st.sampled_from([0.0, 0.5, 0.95]))
    active = [torch.rand(n, generator=generator) < density for n in sizes]
    free = [int((~layer).sum()) for layer in active]
    share = data.draw(st.sampled_from([0.05, 0.125, 0.13, 0.7, 1.0]))
    wanted = [int(share * n) for n in free]
    whole = draw(active, wanted, seed=seed)
    assert [len(set(places)) for places in whole] == wanted
    assert not any(layer[places].any() for layer, places in zip(active, whole, strict=True))
    for limit in (1, 100):
        assert draw(active, wanted, seed=seed, limit=limit) == whole


def test_a_long_layer_is_drawn_without_repeats():
    (places,) = draw([torch.arange(300_000) % 3 == 0], [20_000])
    assert len(set(places)) == 20_000
    assert all(place % 3 for place in places)


def test_by_score_takes_the_largest_of_the_free():
    evidence = row(
        [0.5, None, 0.5, None, None, 0.5, None, None],
        scores=[[9.0, 2.0, 9.0, 7.0, 1.0, 9.0, 8.0, 3.0]],
    )
    (stretch,) = evidence.stretches()
    assert sorted(grow.by_score(stretch, [3]).tolist()) == [3, 6, 7]


def test_by_score_takes_the_first_of_equal_ones():
    (stretch,) = row([None, 0.5, None, None, None], scores=[[1.0, 1.0, 1.0, 1.0, 1.0]]).stretches()
    assert sorted(grow.by_score(stretch, [2]).tolist()) == [0, 2]


def test_by_score_keeps_layers_apart():
    evidence = row(
        [None, 0.5, None, None], [None, None, 0.5, None], scores=[[1.0, 9.0, 3.0, 2.0], [5.0, 8.0, 9.0, 6.0]]
    )
    (stretch,) = evidence.stretches()
    assert sorted(grow.by_score(stretch, [1, 2]).tolist()) == [2, 4 + 1, 4 + 3]


def test_by_score_gives_nothing_where_nothing_is_wanted():
    (stretch,) = row([None, 0.5], scores=[[1.0, 1.0]]).stretches()
    assert grow.by_score(stretch, [0]).tolist() == []


def test_by_score_can_fill_every_free_place_even_without_evidence():
    (stretch,) = row([None, 0.5, None, 0.5], scores=[[0.0, 0.0, 0.0, 0.0]]).stretches()
    assert sorted(grow.by_score(stretch, [2]).tolist()) == [0, 2]


@given(rows(), st.data())
@settings(deadline=None, max_examples=60)
def test_what_comes_by_score_is_free_and_scores_no_less_than_what_does_not(evidence, data):
    free = evidence.free_places()
    wanted = [data.draw(st.integers(0, len(places))) for places in free]
    (stretch,) = evidence.stretches()
    flat = grow.by_score(stretch, wanted)
    for i, (start, end) in enumerate(zip(stretch.chunk.offsets, stretch.chunk.offsets[1:], strict=False)):
        come = set((flat[(flat >= start) & (flat < end)] - start).tolist())
        rest = set(free[i]) - come
        assert len(come) == wanted[i]
        assert come <= set(free[i])
        if come and rest:
            assert evidence.scores[i][list(come)].min() >= evidence.scores[i][list(rest)].max()
