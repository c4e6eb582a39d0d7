"""Share out a whole number of weights in given proportions, exactly."""

from collections.abc import Sequence
from math import isfinite, lcm
from operator import mul


def apportion(
    shares: Sequence[float], total: int, capacities: Sequence[int], sizes: Sequence[int] | None = None
) -> list[int]:
    """How many units each layer gets when `total` weights are shared in proportion to `shares`.

    Largest remainder under capacities: a layer takes the whole part of its quota, never more than its capacity (in
    units); what full layers cannot take goes to the others in the same proportion; the last few weights go to the
    largest remainders, lower index first. Layers with share 0 get only what the others cannot take, in proportion
    to their room. With units of one weight (`sizes` None) the result sums to exactly `total`; with
    larger units the sum of units times sizes never exceeds `total` and falls short by less than one unit.

    All arithmetic is on whole numbers, so the result is exact for any finite shares, denormal ones included.

    >>> apportion([50, 30, 20], 10, [99, 99, 99])
    [5, 3, 2]
    >>> apportion([50, 30, 20], 10, [2, 99, 99])  # the overflow of the first keeps the ratio 3 : 2
    [2, 5, 3]
    """
    units = [1] * len(shares) if sizes is None else sizes
    if not len(shares) == len(capacities) == len(units):
        raise ValueError("shares, capacities and sizes must have one entry per layer")
    if not all(map(isfinite, shares)) or min(shares, default=0) < 0:
        raise ValueError("shares must be finite and not negative")
    if min(capacities, default=0) < 0 or min(units, default=1) < 1:
        raise ValueError("capacities must not be negative and sizes must be positive")
    room = sum(map(mul, capacities, units))
    if not 0 <= total <= room:
        raise ValueError(f"cannot place {total} weights where there is room for {room}")

    counts = [0] * len(shares)
    left = total - _fill(counts, _to_integers(shares), total, capacities, units)
    if left:
        _fill(counts, _rooms(counts, capacities, units), left, capacities, units)
    return counts


def _fill(counts: list[int], shares: Sequence[int], total: int, capacities: Sequence[int], sizes: Sequence[int]) -> int:
    """Add units to `counts` for the layers with a share and room, and return how many weights that used."""
    left = total
    rooms = _rooms(counts, capacities, sizes)
    open_ = [i for i, share in enumerate(shares) if share and rooms[i]]
    while open_:
        sum_ = sum([shares[i] for i in open_])
        full = [i for i in open_ if shares[i] * left >= rooms[i] * sum_]
        if not full:
            break
        for i in full:
            left -= rooms[i]
            counts[i] = capacities[i]
        closed = set(full)
        open_ = [i for i in open_ if i not in closed]
    if not open_:
        return total - left

    shared, common = left, lcm(*set(sizes))
    remainders = []
    for i in open_:
        units, remainder = divmod(shares[i] * shared, sum_ * sizes[i])
        counts[i] += units
        left -= units * sizes[i]
        remainders.append((-remainder * (common // sizes[i]), i))
    remainders.sort()
    fits = True
    while left and fits:
        fits = False
        for _, i in remainders:
            if sizes[i] <= left and counts[i] < capacities[i]:
                counts[i] += 1
                left -= sizes[i]
                fits = True
    return total - left


def _rooms(counts: Sequence[int], capacities: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """How many weights each layer still has room for."""
    return [(capacity - count) * size for capacity, count, size in zip(capacities, counts, sizes, strict=True)]


def _to_integers(shares: Sequence[float]) -> list[int]:
    """The same proportions in whole numbers; every float is a fraction over a power of two, so nothing is lost."""
    if {int}.issuperset(map(type, shares)):
        return [int(share) for share in shares]
    ratios = [share.as_integer_ratio() for share in shares]
    denominator = max((below for _, below in ratios), default=1)
    return [above * (denominator // below) for above, below in ratios]
