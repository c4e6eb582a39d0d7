"""Randomness as a function of numbers: no generator, no state to save, the same on every device and rank.

A *key* is a whole number made from (seed, step, ...); a key and a counter give 64 random bits by the finaliser of
SplitMix64 (Steele, Lea & Flood, 2014). Torch has no unsigned 64-bit arithmetic, but signed multiplication wraps in
just the same way, and a logical shift is an arithmetic one with the sign's copies cut off.
"""

from collections.abc import Sequence
from math import pi

import numpy as np
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ALL = (1 << 64) - 1
NUM_SEEDS = 1 << 64


def key(*numbers: int) -> int:
    """One 64-bit number out of several, as good as random: key(seed, step, layer)."""
    state = 0
    for number in numbers:
        state = _mix_int((state + _GOLDEN + number) & _ALL)
    return state


def keys(key_: int, numbers: Sequence[int]) -> list[int]:
    """[key(key_, number) for each number], all at once."""
    with np.errstate(over="ignore"):
        x = np.array(numbers, dtype=np.uint64) + np.uint64(base(key_))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
        made: list[int] = (x ^ (x >> np.uint64(31))).tolist()
    return made


def base(key_: int) -> int:
    """What `keys` adds each number to before mixing."""
    return (_mix_int((key_ + _GOLDEN) & _ALL) + _GOLDEN) & _ALL


def bits(key: int | Tensor, counters: Tensor) -> Tensor:
    """64 random bits (as int64) for each counter; `key` may be a tensor of one key per counter."""
    key = signed(key) if isinstance(key, int) else key
    return _mix((counters + 1).mul_(signed(_GOLDEN)).add_(key))


def coins(seed: int, counters: Tensor) -> Tensor:
    """True or false for each counter, the same in every step."""
    return bits(key(seed, 0), counters) > 0


def normal(key: int, counters: Tensor) -> Tensor:
    """A draw of a standard normal (float32) for each counter (Box & Muller, 1958)."""
    raw = bits(key, counters)
    radius = _shift(raw, 32).float().add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = raw.bitwise_and_(0xFFFFFFFF).float().mul_(2 * pi * 2.0**-32)
    return radius.mul_(angle.cos_())


def _mix(x: Tensor) -> Tensor:
    x ^= _shift(x, 30)
    x *= signed(_FIRST)
    x ^= _shift(x, 27)
    x *= signed(_SECOND)
    x ^= _shift(x, 31)
    return x


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _ALL
    x = ((x ^ (x >> 27)) * _SECOND) & _ALL
    return x ^ (x >> 31)


def signed(number: int) -> int:
    """A 64-bit key as torch holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number
