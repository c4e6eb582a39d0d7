"""Positions in code: gaps by hand, any positions and back, never far from their entropy, and no code that is none."""

import tracemalloc
from math import comb, log2

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regrow.files.positions import (
    LARGEST_PARAMETER,
    Code,
    code_of,
    entropy,
    is_long_enough,
    positions_in,
    positions_of,
)


def of(*positions: int) -> np.ndarray:
    return np.array(positions, dtype=np.int64)


def filled(bits: str) -> list[int]:
    """Bytes with these bits, the first in the lowest."""
    flags = np.array([bit == "1" for bit in bits.replace(" ", "")], dtype=bool)
    return np.packbits(flags, bitorder="little").tolist()


BY_HAND = {
    # gaps of 3 0 15 16 2: 0 0 3 4 0 fours, and 3 0 3 0 2 remain
    "a few": (of(3, 4, 20, 37), 40, 2, "10100 10101", "1 1 0001 00001 1"),
    # gaps of 0 1 0 2 2: of so many this is shortest, a bitmap with a one behind it
    "a bitmap": (of(0, 2, 3, 6), 9, 0, "", "1 01 1 001 001"),
    # one is not among them: gaps of 5 2 around it, 2 1 twos, and 1 0 remain
    "most": (of(0, 1, 2, 3, 4, 6, 7), 8, 1, "10", "001 01"),
    # one gap of 4, which is 2 twos
    "all": (of(0, 1, 2, 3), 4, 1, "0", "001"),
    "none": (of(), 4, 1, "0", "001"),
    "none of nothing": (of(), 0, 0, "", "1"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_codes_by_hand(name: str):
    positions, num_positions, parameter, remainders, quotients = BY_HAND[name]
    code = code_of(positions, num_positions)
    assert (code.parameter, code.content.tolist()) == (parameter, filled(remainders) + filled(quotients))
    assert positions_of(code, num_positions, len(positions)).tolist() == positions.tolist()


def test_parameters_grow_with_the_gaps_to_a_largest_one():
    parameters = [code_of(np.arange(0, 100_000, gap), 100_000).parameter for gap in (2, 9, 99, 999, 9_999, 50_000)]
    assert parameters == sorted(parameters)
    assert (parameters[0], parameters[-1]) == (0, LARGEST_PARAMETER)


# Any positions

SEEDS = st.integers(0, 2**32 - 1)
DENSITIES = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0])


def drawn(num_positions: int, num_active: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(num_positions, num_active, replace=False))


@settings(deadline=None)
@given(st.integers(0, 3000), DENSITIES, SEEDS)
@example(1, 0.0, 0)
@example(1, 1.0, 0)
@example(3000, 0.0, 0)
@example(3000, 1.0, 0)
def test_positions_come_back(num_positions: int, density: float, seed: int):
    positions = drawn(num_positions, round(density * num_positions), seed)
    code = code_of(positions, num_positions)
    back = positions_of(code, num_positions, len(positions))
    assert back.dtype == np.int64
    assert back.tolist() == positions.tolist()
    assert is_long_enough(len(code.content), code.parameter, num_positions, len(positions))


@given(st.sets(st.integers(0, 60)), st.integers(61, 70))
def test_a_code_is_no_longer_than_a_bitmap_and_a_bit(positions: set[int], num_positions: int):
    code = code_of(of(*sorted(positions)), num_positions)
    assert len(code.content) <= 2 + num_positions // 8  # two parts, each of whole bytes


def test_a_huge_tensor_with_few_positions():
    positions, num_positions = of(0, 5 * 10**9, 10**10 - 1), 10**10
    code = code_of(positions, num_positions)
    assert len(code.content) <= num_positions / 2**LARGEST_PARAMETER / 8 + 10
    assert positions_of(code, num_positions, 3).tolist() == positions.tolist()


# Entropy


@given(st.integers(0, 200), st.integers(0, 200))
def test_entropy_counts_the_ways_to_choose(num_active: int, num_others: int):
    num_positions = num_active + num_others
    assert entropy(num_positions, num_active) == pytest.approx(log2(comb(num_positions, num_active)), abs=1e-6)


def spread(num_positions: int, num_active: int, how: str, seed: int) -> np.ndarray:
    """Positions at random, only in some of the rows, side by side in fours, or as even as can be."""
    if how == "even":
        return np.arange(num_active) * (num_positions // num_active)
    row = max(num_positions // 50, 1)
    groups = {"rows": np.arange(num_positions).reshape(-1, row)[::3], "fours": np.arange(num_positions).reshape(-1, 4)}
    rng = np.random.default_rng(seed)
    if how == "rows":
        return np.sort(rng.choice(groups["rows"].ravel(), num_active, replace=False))
    if how == "fours":
        chosen = rng.choice(len(groups["fours"]), -(-num_active // 4), replace=False)
        return np.sort(groups["fours"][chosen].ravel()[:num_active])
    return drawn(num_positions, num_active, seed)


@settings(deadline=None)
@given(
    st.sampled_from([400, 10_000, 1_000_000]),
    st.sampled_from([0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.003, 0.001]),
    st.sampled_from(["random", "rows", "fours", "even"]),
    SEEDS,
)
def test_from_a_sparsity_of_90_percent_positions_take_at_most_a_tenth_more_than_their_entropy(
    num_positions: int, density: float, how: str, seed: int
):
    num_active = max(round(density * num_positions), 1)
    code = code_of(spread(num_positions, num_active, how, seed), num_positions)
    assert 8 * len(code.content) <= 1.1 * entropy(num_positions, num_active) + 8 * 4  # of which two fill up bytes


@settings(deadline=None)
@given(st.floats(0.001, 0.999), SEEDS)
def test_random_positions_take_a_few_percent_more_than_their_entropy_at_any_sparsity(density: float, seed: int):
    num_active = round(density * 100_000)
    code = code_of(drawn(100_000, num_active, seed), 100_000)
    assert 8 * len(code.content) <= 1.05 * entropy(100_000, num_active) + 8 * 4


# What is no code


def is_refused(code: Code, num_positions: int, num_active: int) -> bool:
    try:
        positions_of(code, num_positions, num_active)
    except ValueError:
        return True
    return False


CODED = [(1000, 300), (1000, 100), (1000, 10), (1000, 995), (1000, 0), (1000, 1000), (64, 32)]


@pytest.mark.parametrize(("num_positions", "num_active"), CODED)
def test_every_flipped_bit_is_found_without_a_checksum(num_positions: int, num_active: int):
    code = code_of(drawn(num_positions, num_active, seed=0), num_positions)
    for bit in range(8 * len(code.content)):
        content = code.content.copy()
        content[bit // 8] ^= 1 << bit % 8
        assert is_refused(Code(code.parameter, content), num_positions, num_active), bit


@pytest.mark.parametrize(("num_positions", "num_active"), CODED)
def test_codes_of_other_numbers_and_lengths_are_refused(num_positions: int, num_active: int):
    code = code_of(drawn(num_positions, num_active, seed=0), num_positions)
    for other in {0, 1, num_positions // 2, num_positions} - {num_active, num_positions - num_active}:
        assert is_refused(code, num_positions, other)
    for other in (num_positions - 1, num_positions + 1, 10**12):
        assert is_refused(code, other, num_active)
    for length in range(len(code.content)):
        assert is_refused(Code(code.parameter, code.content[:length]), num_positions, num_active)
    for junk in (0, 1, 255):
        longer = np.append(code.content, np.uint8(junk))
        assert is_refused(Code(code.parameter, longer), num_positions, num_active)


@given(st.binary(max_size=12), st.integers(0, LARGEST_PARAMETER), st.integers(0, 40), st.integers(0, 40))
def test_any_bytes_are_positions_or_refused(content: bytes, parameter: int, num_active: int, num_others: int):
    num_positions = num_active + num_others
    code = Code(parameter, np.frombuffer(content, dtype=np.uint8))
    if not is_refused(code, num_positions, num_active):
        found = positions_of(code, num_positions, num_active).tolist()
        assert found == sorted(set(found))
        assert len(found) == num_active
        assert all(0 <= position < num_positions for position in found)


@pytest.mark.parametrize("byte", [0, 1, 255])
@pytest.mark.parametrize("num_active", [0, 5, 999_995])
def test_a_wrong_code_takes_memory_in_proportion_to_its_own(byte: int, num_active: int):
    code = Code(0, np.full(100_000, byte, dtype=np.uint8))
    tracemalloc.start()
    try:
        assert is_refused(code, 1_000_000, num_active)
        assert tracemalloc.get_traced_memory()[1] < 10 * 100_000
    finally:
        tracemalloc.stop()


def test_a_byte_tells_of_so_many_positions_and_no_more():
    most = 8 * 2**LARGEST_PARAMETER
    assert is_long_enough(2 + 1, LARGEST_PARAMETER, most - 1, 0)
    assert not is_long_enough(2 + 1, LARGEST_PARAMETER, most, 0)
    assert not is_long_enough(2, LARGEST_PARAMETER, 0, 0)  # which its one remainder fills
    assert not is_long_enough(10**6, LARGEST_PARAMETER + 1, 0, 0)
    assert not is_long_enough(10**6, 10**18, 10**18, 10**17)


# Bitmaps, as files of older formats have them


@given(st.sets(st.integers(0, 200)), st.integers(201, 209))
def test_a_bitmap_says_the_same(positions: set[int], num_positions: int):
    flags = np.zeros(num_positions, dtype=bool)
    flags[sorted(positions)] = True
    mask = np.packbits(flags, bitorder="little")
    assert positions_in(mask, num_positions, len(positions)).tolist() == sorted(positions)
    for num_active in (len(positions) - 1, len(positions) + 1):
        with pytest.raises(ValueError, match="does not count"):
            positions_in(mask, num_positions, num_active)


def test_a_bitmap_with_a_bit_behind_its_positions_is_refused():
    with pytest.raises(ValueError, match="does not count 2 values"):
        positions_in(np.array([1, 0b100], dtype=np.uint8), 10, 2)
