"""Share out a whole number of weights in given proportions, exactly."""

from collections.abc import Sequence
from math import isfinite, lcm


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
    units = [1] * len(shares) if sizes is None else list(sizes)
    if not len(shares) == len(capacities) == len(units):
        raise ValueError("shares, capacities and sizes must have one entry per layer")
    if not all(map(isfinite, shares)) or min(shares, default=0) < 0:
        raise ValueError("shares must be finite and not negative")
    if min(capacities, default=0) < 0 or min(units, default=1) < 1:
        raise ValueError("capacities must not be negative and sizes must be positive")
    room = sum(capacity * size for capacity, size in zip(capacities, units, strict=True))
    if not 0 <= total <= room:
        raise ValueError(f"cannot place {total} weights where there is room for {room}")

    counts = [0] * len(shares)
    left = total
    whole = _to_integers(shares)
    wanting = [i for i, share in enumerate(whole) if share > 0 and capacities[i] > 0]
    left -= _fill(counts, wanting, whole, left, capacities, units)
    if left:
        rooms = [(capacity - count) * size for capacity, count, size in zip(capacities, counts, units, strict=True)]
        others = [i for i, space in enumerate(rooms) if space > 0]
        _fill(counts, others, rooms, left, capacities, units)
    return counts


def _fill(
    counts: list[int],
    open_: list[int],
    shares: Sequence[int],
    total: int,
    capacities: Sequence[int],
    sizes: Sequence[int],
) -> int:
    """Add units to `counts` for the layers in `open_` and return how many weights that used."""
    left = total
    while open_:
        sum_ = sum(shares[i] for i in open_)
        full = [i for i in open_ if shares[i] * left >= (capacities[i] - counts[i]) * sizes[i] * sum_]
        if not full:
            break
        for i in full:
            left -= (capacities[i] - counts[i]) * sizes[i]
            counts[i] = capacities[i]
        closed = set(full)
        open_ = [i for i in open_ if i not in closed]
    if not open_:
        return total - left

    quotas = {i: divmod(shares[i] * left, sum_ * sizes[i]) for i in open_}
    for i, (units, _) in quotas.items():
        counts[i] += units
    left -= sum(units * sizes[i] for i, (units, _) in quotas.items())
    common = lcm(*(sizes[i] for i in open_))
    by_remainder = sorted(open_, key=lambda i: (-quotas[i][1] * (common // sizes[i]), i))
    fits = True
    while left and fits:
        fits = False
        for i in by_remainder:
            if sizes[i] <= left and counts[i] < capacities[i]:
                counts[i] += 1
                left -= sizes[i]
                fits = True
    return total - left


def _to_integers(shares: Sequence[float]) -> list[int]:
    """The same proportions in whole numbers; every float is a fraction over a power of two, so nothing is lost."""
    if all(isinstance(share, int) for share in shares):
        return [int(share) for share in shares]
    ratios = [share.as_integer_ratio() for share in shares]
    denominator = max((below for _, below in ratios), default=1)
    return [above * (denominator // below) for above, below in ratios]
