"""Where active values are, in code: gaps as Golomb-Rice codes, a few percent longer than the entropy of the positions.

Coded are the positions of which there are fewer, those of active values or the others, by the gaps before, between and
behind them. A tensor has a parameter p of its own, the one that makes its code shortest. A gap g is the quotient
g >> p and p bits of remainder; the code has first the remainders, the lowest bit of each, then the next ones, and so
on, and then, from a new byte, the quotients in unary: as many zeros, and a one. Bits fill a byte from the lowest one.

>>> code = code_of(np.array([3, 4, 20, 37]), 40)  # gaps of 3, 0, 15, 16, 2
>>> code.parameter, [f"{byte:08b}"[::-1] for byte in code.content]  # 10100 10101; 1 1 0001 00001 1
(2, ['10100101', '01000000', '11000100', '00110000'])
>>> positions_of(code, 40, 4).tolist()
[3, 4, 20, 37]

With parameter 0 this is a bitmap and a one behind it, so no code is longer than that. And n gaps of m on the average
take at most n (1 + p + m / 2^p) bits, however they are spread: with the best p, and m of 9 or more, at most 1.1 times
their entropy.
"""

from dataclasses import dataclass
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

LARGEST_PARAMETER = 12
"""A bit stands for 4,096 positions at most, so that the length of a file bounds what it can tell of."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Code:
    """The positions of a tensor as a file has them."""

    parameter: int
    content: Bytes


def code_of(positions: Positions, num_positions: int) -> Code:
    """The shortest code of some ascending positions."""
    rarer = positions if 2 * len(positions) <= num_positions else _others(positions, num_positions)
    gaps = np.diff(rarer, prepend=-1, append=num_positions) - 1
    parameter = _best_parameter(gaps)
    remainders = [(gaps >> bit & 1).astype(bool) for bit in range(parameter)]
    ends = np.cumsum((gaps >> parameter) + 1) - 1
    quotients = np.zeros(ends[-1] + 1, dtype=bool)
    quotients[ends] = True
    packed = [np.packbits(np.array(bits, dtype=bool), bitorder="little") for bits in (remainders, quotients)]
    return Code(parameter, np.concatenate(packed))


def positions_of(code: Code, num_positions: int, num_active: int) -> Positions:
    """The positions again, ascending; a ValueError if this is no code of so many out of so many."""
    num_gaps = _num_gaps(num_positions, num_active)
    num_bits = code.parameter * num_gaps
    remainders, quotients = np.split(code.content, [-(-num_bits // 8)])
    unary = np.unpackbits(quotients, bitorder="little").view(bool)
    if int(np.count_nonzero(unary)) != num_gaps or not quotients[-1] or _beyond(remainders, num_bits):
        raise ValueError(f"their code is not of {num_active:,} values")
    gaps = np.diff(np.flatnonzero(unary), prepend=-1) - 1
    gaps <<= code.parameter
    planes = np.unpackbits(remainders, count=num_bits, bitorder="little").reshape(code.parameter, num_gaps)
    for bit, plane in enumerate(planes):
        gaps |= plane.astype(np.int64) << bit
    rarer = np.cumsum(gaps + 1) - 1
    if rarer[-1] != num_positions:
        raise ValueError(f"their code is not of {num_positions:,} positions")
    return rarer[:-1] if 2 * num_active <= num_positions else _others(rarer[:-1], num_positions)


def is_long_enough(num_bytes: int, parameter: int, num_positions: int, num_active: int) -> bool:
    """Whether a code of so many bytes could tell of so many positions, which are then no more than in proportion."""
    num_unary = num_bytes - -(-parameter * _num_gaps(num_positions, num_active) // 8)
    return parameter <= LARGEST_PARAMETER and num_positions < (8 * num_unary) << parameter


def positions_in(mask: Bytes, num_positions: int, num_active: int) -> Positions:
    """Which bits of a bitmap are set, ascending, as older files have them; a ValueError if these are not so many.

    >>> positions_in(np.array([5, 2], dtype=np.uint8), 12, 3).tolist()
    [0, 2, 9]
    """
    if int(_ONES[mask].sum()) != num_active or _beyond(mask, num_positions):
        raise ValueError(f"their mask does not count {num_active:,} values")
    where = np.flatnonzero(mask)  # most bytes of a sparse one are 0
    found = np.flatnonzero(np.unpackbits(mask[where], bitorder="little"))
    positions: Positions = (where[found >> 3] << 3) + (found & 7)
    return positions


def entropy(num_positions: int, num_active: int) -> float:
    """How many bits tell which of the positions are active if all choices are alike: log2 of how many there are.

    >>> f"{entropy(4, 2):.3f}"  # one of six
    '2.585'
    """
    ways = lgamma(num_positions + 1) - lgamma(num_active + 1) - lgamma(num_positions - num_active + 1)
    return max(ways, 0.0) / log(2)


def _num_gaps(num_positions: int, num_active: int) -> int:
    return min(num_active, num_positions - num_active) + 1


def _best_parameter(gaps: Positions) -> int:
    """What a larger one saves gets less with each, and what it costs stays the same."""
    parameter, quotients = 0, gaps
    while parameter < LARGEST_PARAMETER and int((quotients - (quotients >> 1)).sum()) > len(gaps):
        parameter, quotients = parameter + 1, quotients >> 1
    return parameter


def _others(positions: Positions, num_positions: int) -> Positions:
    """The positions that are not among these."""
    is_other = np.ones(num_positions, dtype=bool)
    is_other[positions] = False
    return np.flatnonzero(is_other)


def _beyond(content: Bytes, num_bits: int) -> bool:
    """Whether a bit is set behind the last one."""
    return num_bits % 8 != 0 and bool(content[-1] >> num_bits % 8)
