"""Randomness as a function of numbers."""

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import random

MASK = (1 << 64) - 1
any_int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def splitmix64(seed: int, index: int) -> int:
    """Output number `index` of the generator as published, in whole numbers."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def unsigned(bits: torch.Tensor) -> list[int]:
    return [number & MASK for number in bits.tolist()]


def test_bits_are_the_published_sequence_of_splitmix64():
    assert unsigned(random.bits(1234567, torch.arange(5))) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, MASK), st.lists(any_int64, min_size=1, max_size=5))
@settings(deadline=None)
def test_signed_arithmetic_gives_the_unsigned_answer(key, counters):
    expected = [splitmix64(key, counter) for counter in counters]
    assert unsigned(random.bits(key, torch.tensor(counters))) == expected


@given(st.lists(st.tuples(st.integers(0, MASK), any_int64), min_size=1, max_size=5))
@settings(deadline=None)
def test_a_key_for_each_counter_gives_what_single_keys_give(pairs):
    keys = torch.tensor([random.signed(key) for key, _ in pairs])
    together = random.bits(keys, torch.tensor([counter for _, counter in pairs]))
    assert together.tolist() == [int(random.bits(key, torch.tensor([counter]))) for key, counter in pairs]


def test_counters_and_keys_are_left_as_they_were():
    counters, keys = torch.arange(8), torch.arange(8)
    random.bits(keys, counters)
    random.normal(3, counters)
    assert counters.tolist() == keys.tolist() == list(range(8))


def test_the_generators_of_torch_are_not_touched():
    before = torch.get_rng_state()
    random.normal(random.key(0, 1), torch.arange(8))
    assert torch.equal(torch.get_rng_state(), before)


def test_keys_are_the_same_for_ever():
    # Saved runs rely on these.
    assert random.key(0) == splitmix64(0, 0) == 0xE220A8397B1DCDAF
    assert random.key(0, 1) == splitmix64((random.key(0) + 1) & MASK, 0)


def test_the_order_and_number_of_a_keys_parts_matter():
    keys = [random.key(*parts) for parts in [(), (0,), (0, 0), (0, 1), (1, 0), (1,), (0, 0, 0), (-1,)]]
    assert len(set(keys)) == len(keys)


@given(st.lists(st.integers(-(1 << 70), 1 << 70), max_size=4))
@settings(deadline=None)
def test_a_key_has_64_bits_whatever_it_is_made_of(parts):
    key = random.key(*parts)
    assert 0 <= key <= MASK
    assert -(1 << 63) <= random.signed(key) < 1 << 63
    assert random.signed(key) & MASK == key


def test_keys_of_small_seeds_steps_and_layers_do_not_collide():
    keys = {random.key(seed, step, layer) for seed in range(10) for step in range(100) for layer in range(20)}
    assert len(keys) == 10 * 100 * 20


@given(st.integers(0, MASK), st.integers(0, 1000), st.integers(0, 5))
@settings(deadline=None)
def test_keys_made_at_once_are_those_made_one_by_one(key, first, num_keys):
    numbers = range(first, first + num_keys)
    assert random.keys(key, numbers) == [random.key(key, number) for number in numbers]


def test_every_bit_is_set_half_of_the_time():
    bits = random.bits(random.key(0, 7), torch.arange(4096))
    for place in range(64):
        ones = int(((bits >> place) & 1).sum())
        assert abs(ones - 2048) < 5 * 32  # five standard deviations


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    draws = random.normal(random.key(0, 1), torch.arange(1 << 18)).double()
    error = 1 / sqrt(len(draws))
    assert abs(draws.mean()) < 5 * error
    assert abs(draws.var() - 1) < 5 * sqrt(2) * error
    assert abs((draws**3).mean()) < 5 * sqrt(15) * error
    assert abs((draws**4).mean() - 3) < 5 * sqrt(96) * error


@pytest.mark.parametrize(("below", "share"), [(-2, 0.02275), (-1, 0.15866), (0, 0.5), (1, 0.84134), (2, 0.97725)])
def test_normal_numbers_fall_below_each_bound_as_often_as_they_should(below, share):
    draws = random.normal(random.key(5), torch.arange(1 << 16))
    assert (draws < below).double().mean().item() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("word", [0, -1, 0xFFFFFFFF, -(1 << 32), (1 << 63) - 1, -(1 << 63)])
def test_no_word_makes_a_normal_number_that_is_not_finite(monkeypatch, word):
    monkeypatch.setattr(random, "bits", lambda key, counters: torch.full_like(counters, word))
    assert random.normal(0, torch.arange(1)).isfinite().all()


def test_neighbouring_steps_are_not_correlated():
    now, then = (random.normal(random.key(0, step, 1), torch.arange(1 << 16)).double() for step in (1, 2))
    assert abs((now * then).mean()) < 5 / 256
    assert abs((now[1:] * now[:-1]).mean()) < 5 / 256
