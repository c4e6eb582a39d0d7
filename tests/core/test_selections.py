"""Picking exactly: the k smallest, free places at random, means that no order changes."""

from collections import Counter
from fractions import Fraction
from math import comb, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import random, selections
from regrow.core.row import cut_into_chunks
from regrow.core.selections import (
    Listed,
    _by_sorting,
    ascending,
    draw_free,
    exact_means,
    is_active,
    k_smallest,
    k_smallest_each,
    positions_of,
)
from regrow.core.units import cut
from strategies import CPU

LONG = 250_000


def by_sorting(scores: torch.Tensor, k: int) -> list[int]:
    """The answer a stable sort gives."""
    return sorted(scores.sort(stable=True).indices[:k].tolist())


def noise(seed: int, size: int = LONG) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed))


def test_positions_of_true_flags():
    assert positions_of(torch.tensor([0, 1, 1, 0, 0, 0, 0, 1]).bool()).tolist() == [1, 2, 7]
    assert positions_of(torch.zeros(8, dtype=torch.bool)).tolist() == []


def test_ascending_sorts_a_copy():
    numbers = torch.tensor([3, 1, 2])
    assert ascending(numbers).tolist() == [1, 2, 3]
    assert numbers.tolist() == [3, 1, 2]


def test_the_three_smallest_of_eight():
    scores = torch.tensor([5.0, 0.5, 4.0, 0.1, 3.0, 0.3, 2.0, 1.0])
    assert k_smallest(scores, 3).tolist() == [1, 3, 5]


def test_among_equal_scores_the_first_are_taken():
    scores = torch.tensor([2.0, 1.0, 2.0, 1.0, 2.0, 0.0, 2.0, 2.0])
    assert k_smallest(scores, 5).tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(("k", "answer"), [(0, []), (8, [0, 1, 2, 3, 4, 5, 6, 7])])
def test_none_and_all(k, answer):
    assert k_smallest(torch.ones(8), k).tolist() == answer


def test_infinite_scores_come_last():
    inf = torch.inf
    assert k_smallest(torch.tensor([inf, 1.0, inf, -inf, 2.0, inf, inf, 3.0]), 4).tolist() == [1, 3, 4, 7]


def test_scores_are_left_as_they_were():
    scores = torch.tensor([3.0, 1.0, 2.0])
    k_smallest(scores, 2)
    assert scores.tolist() == [3.0, 1.0, 2.0]


@given(st.lists(st.integers(-3, 3) | st.floats(-1, 1, width=32), min_size=1, max_size=40), st.data())
@settings(deadline=None)
def test_the_answer_is_that_of_a_stable_sort(values, data):
    scores = torch.tensor(values, dtype=torch.float32)
    k = data.draw(st.integers(0, len(values)))
    assert k_smallest(scores, k).tolist() == by_sorting(scores, k)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2), min_size=1, max_size=40), st.data())
@settings(deadline=None)
def test_whole_numbers_of_64_bits_are_compared_exactly(values, data):
    scores = torch.tensor(values)
    k = data.draw(st.integers(0, len(values)))
    assert k_smallest(scores, k).tolist() == by_sorting(scores, k)


@pytest.mark.parametrize("k", [1, 2, 100, LONG // 100, LONG // 8, LONG // 8 + 1, LONG - 1])
@pytest.mark.parametrize("kind", ["spread", "tied", "int64", "ascending", "descending"])
def test_long_rows_give_the_answer_of_a_stable_sort(kind, k):
    scores = {
        "spread": noise(0),
        "tied": (noise(1) * 20).floor(),
        "int64": (noise(2).double() * 2**62).long() - 2**61,
        "ascending": torch.arange(LONG).float(),
        "descending": -torch.arange(LONG).float(),
    }[kind]
    assert k_smallest(scores, k).tolist() == by_sorting(scores, k)


@pytest.mark.parametrize("period", [9, 15, 16])
@pytest.mark.parametrize("low", [0, 1])
def test_long_rows_with_a_rhythm_do_not_fool_the_sample(period, low):
    # Small scores exactly where a sample of every 15th looks, or exactly where it does not.
    scores = noise(3) + 10
    scores[low::period] -= 10
    for k in (5, 1000, LONG // 16, LONG // 9):
        assert k_smallest(scores, k).tolist() == by_sorting(scores, k)


def test_a_long_row_of_equal_scores_yields_its_beginning():
    assert k_smallest(torch.ones(LONG), 1000).tolist() == list(range(1000))
    assert k_smallest(torch.zeros(LONG, dtype=torch.int64), 1000).tolist() == list(range(1000))


@given(st.integers(0, 2**32), st.integers(1, LONG // 8), st.sampled_from([2, 50, 10_000, 10**9]))
@settings(deadline=None, max_examples=10)
def test_long_rows_with_any_number_of_ties(seed, k, levels):
    scores = (noise(seed) * levels).floor()
    assert k_smallest(scores, k).tolist() == by_sorting(scores, k)


@pytest.mark.parametrize("seed", range(24))
def test_the_way_of_the_gpu_finds_the_same_places(seed):
    """On a GPU all parts are sorted at once, after a sampled bound where they are long; here both ways run on a CPU."""
    generator = torch.Generator().manual_seed(seed)
    longest, share = (200_000, 20) if seed % 3 == 0 else (50, 1)
    lengths = torch.randint(1, longest, (4,), generator=generator).tolist()
    ks = [int(torch.randint(0, n // share + 1, (1,), generator=generator)) for n in lengths]
    scores = torch.randn(sum(lengths), generator=generator)
    if seed % 2:
        scores = (scores * 2).round() / 2  # many ties, and zeros of both signs
    scores[torch.rand(len(scores), generator=generator) < 0.1] = torch.inf
    assert _by_sorting(scores, lengths, ks).equal(k_smallest_each(scores, lengths, ks))


# Free places at random


def draw(
    active: list[torch.Tensor],
    wanted: list[int],
    *,
    limit: int | None = None,
    seed: int = 0,
    is_listed: bool = False,
) -> list[list[int]]:
    """Places that come in each layer, ascending, cut into chunks of at most `limit` units."""
    layers = [cut(f"layer{i}", flags, "weight") for i, flags in enumerate(active)]
    found = []
    for chunk in cut_into_chunks(layers, [CPU] * len(layers), limit):
        flat = torch.cat(list(chunk.of(active)))
        free = [int((~flags).sum()) for flags in chunk.of(active)]
        topology = Listed(positions_of(flat)) if is_listed else flat
        places = draw_free(chunk, chunk.of(wanted), free, topology, random.key(seed), {}).tolist()
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
    usual = selections.draws_for
    monkeypatch.setattr(selections, "draws_for", lambda *numbers: max(1, int(factor * usual(*numbers))))
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
    for limit in (1, 100, None):
        for is_listed in (False, True):
            assert draw(active, wanted, seed=seed, limit=limit, is_listed=is_listed) == whole


@pytest.mark.parametrize("tile", [1, 7, 64, 1000])
@pytest.mark.parametrize("wanted", [1, 9, 60, 99])
def test_how_a_listed_layer_is_cut_into_tiles_changes_nothing(monkeypatch, tile, wanted):
    topology = [flags("x.." * 50)]
    expected = draw(topology, [wanted])
    monkeypatch.setattr(selections, "_TILE", tile)
    assert draw(topology, [wanted], is_listed=True) == expected


def test_a_long_layer_is_drawn_without_repeats():
    (places,) = draw([torch.arange(300_000) % 3 == 0], [20_000])
    assert len(set(places)) == 20_000
    assert all(place % 3 for place in places)


# A topology as a list


def test_a_list_gives_the_active_units_of_a_range():
    listed = Listed(torch.tensor([0, 3, 4, 7]))
    assert listed.within(3, 7).tolist() == [3, 4]
    assert listed.within(1, 3).tolist() == []


@pytest.mark.parametrize("pattern", ["x..xx..x", "........", "xxxxxxxx"])
def test_flags_and_lists_agree_on_what_is_active(pattern):
    topology, places = flags(pattern), torch.tensor([7, 0, 1, 4])
    expected = [pattern[place] == "x" for place in places]
    assert is_active(topology, places).tolist() == expected
    assert is_active(Listed(positions_of(topology)), places).tolist() == expected


# Means


def test_each_part_has_its_own_mean_and_an_empty_one_has_none():
    assert exact_means(torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 0.5, 0.0]), [3, 0, 3, 2]) == [2, 0, 6, 0.25]


def test_what_is_large_does_not_swallow_what_is_small():
    # In single precision 2^30 + 1 is 2^30, so that adding from the left would give (0 + 3) / 4.
    values = torch.tensor([2.0**30, 1.0, -(2.0**30), 3.0])
    assert exact_means(values, [4]) == [1]


def test_a_mean_is_rounded_once():
    # A third of 1, as near as a double can be; the sum of its rounded parts would be something else.
    assert exact_means(torch.tensor([1.0, 0.0, 0.0]), [3]) == [1 / 3]
    assert exact_means(torch.tensor([0.1] * 10, dtype=torch.float64), [10]) == [0.1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_smallest_and_the_largest_numbers_have_means_too(dtype):
    info = torch.finfo(dtype)
    assert exact_means(torch.tensor([info.max, info.max], dtype=dtype), [2]) == [info.max]
    assert exact_means(torch.tensor([info.max, -info.max, info.tiny, info.tiny], dtype=dtype), [4]) == [info.tiny / 2]


@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float), max_size=12),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None)
def test_means_are_those_of_fractions(parts):
    values = torch.tensor([number for part in parts for number in part], dtype=torch.float64)
    expected = [float(sum(map(Fraction, part)) / len(part)) if part else 0.0 for part in parts]
    assert exact_means(values, list(map(len, parts))) == expected


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40), st.randoms())
@settings(deadline=None)
def test_the_order_of_adding_up_changes_nothing(numbers, shuffler):
    expected = exact_means(torch.tensor(numbers), [len(numbers)])
    shuffler.shuffle(numbers)
    assert exact_means(torch.tensor(numbers), [len(numbers)]) == expected
