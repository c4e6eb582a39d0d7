"""Picking exactly k out of many by score."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.selections import _by_sorting, ascending, k_smallest, k_smallest_each, positions_of

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
