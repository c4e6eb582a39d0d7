"""DeepR's whole rewiring as three GPU kernels that never ask the host. Imported only where Triton is installed.

`clock`: the steps done so far, and the seed, mixed. `dials`: temperature, drift, and 1 if this step rewires. `marks`
has a byte for every unit: 1 for one that goes, 2 for one that comes, and is all 0 before and after.
"""

import triton
import triton.language as tl

from regrow.kernels.gpu.triton.row import _mix

_GOLDEN: tl.constexpr = tl.constexpr(-7046029254386353131)


@triton.jit
def walk(blocks, active, rates, clock, dials, marks, counts, BLOCK: tl.constexpr):
    """Program b moves the active weights of block b and marks what crossed zero.

    It must do what `drift_and_noise` in methods/effects/random_walk.py does.

    The columns of `blocks`: first unit, end of its layer, the layer, where its signs and its weights lie. `counts` sums
    up how many of each layer crossed.
    """
    row = blocks + tl.program_id(0) * 5
    layer = tl.load(row + 2)
    at = tl.arange(0, BLOCK)
    unit = tl.load(row) + at
    inside = unit < tl.load(row + 1)
    is_active = tl.load(active + unit, mask=inside, other=0) != 0
    is_positive = tl.load(tl.load(row + 3).to(tl.pointer_type(tl.int8)) + at, mask=inside, other=0) != 0
    weights = tl.load(row + 4).to(tl.pointer_type(tl.float32)) + at
    rate = tl.load(rates + layer).to(tl.float64)
    spread = tl.sqrt(2 * tl.load(dials) * rate).to(tl.float32)
    drift = (tl.load(dials + 1) * rate).to(tl.float32)
    key = _mix(_step_key(clock) + _GOLDEN + 1)
    moved = tl.load(weights, mask=is_active, other=0) + (
        _normal(key, unit) * spread + tl.where(is_positive, -drift, drift)
    )
    tl.store(weights, moved, mask=is_active)
    theta = tl.where(is_positive, moved, -moved)
    crossed = is_active & (theta * tl.load(dials + 2) < 0)
    tl.store(marks + unit, crossed.to(tl.uint8), mask=inside)
    tl.atomic_add(counts + layer, tl.sum(crossed.to(tl.int32)))


@triton.jit
def replace_crossed(layers, blocks, active, clock, marks, owner, counts, totals, BLOCK: tl.constexpr):
    """Program l settles how many of layer l go and marks as many free places that come, as `selections.draw_free` does.

    The columns of `layers`: first unit, end, most that may go, free places, first block. In `owner`, where every entry
    must be the largest number, each free place that is hit learns the first draw that hit it.
    """
    layer = tl.program_id(0)
    row = layers + layer * 5
    begin, end, limit, free = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    weights = tl.load(blocks + tl.load(row + 4) * 5 + 4).to(tl.pointer_type(tl.float32))
    num_crossed = tl.load(counts + layer).to(tl.int64)
    wanted = tl.minimum(num_crossed, limit)
    tl.store(totals + layer, tl.load(totals + layer) + wanted)
    if num_crossed > limit:
        _mark_smallest(weights, 0, active, marks, 0, wanted, begin, end, BLOCK)
    key = _mix(_mix(_step_key(clock) + _GOLDEN) + _GOLDEN + layer)
    if 8 * wanted > free:
        _mark_smallest(weights, 1, active, marks, key, wanted, begin, end, BLOCK)
    else:
        _mark_first_free(active, marks, owner, key, wanted, begin, end, BLOCK)


@triton.jit
def apply_marks(blocks, active, marks, clock, BLOCK: tl.constexpr):
    """Program b edits the topology where block b is marked; one of them counts the step.

    Where a weight has gone its place gets the sign at random that the host would toss for it.
    """
    row = blocks + tl.program_id(0) * 5
    at = tl.arange(0, BLOCK)
    unit = tl.load(row) + at
    inside = unit < tl.load(row + 1)
    mark = tl.load(marks + unit, mask=inside, other=0)
    tl.store(active + unit, (mark == 2).to(tl.int8), mask=mark != 0)
    coin = _bits(_mix(tl.load(clock + 1) + _GOLDEN), unit) > 0
    tl.store(tl.load(row + 3).to(tl.pointer_type(tl.int8)) + at, coin.to(tl.int8), mask=mark == 1)
    tl.store(marks + unit, tl.zeros([BLOCK], dtype=tl.uint8), mask=mark != 0)
    if tl.program_id(0) == 0:
        tl.store(clock, tl.load(clock) + 1)


@triton.jit
def _step_key(clock):
    """random.key(seed, step) of the step that is going on."""
    return _mix(tl.load(clock + 1) + _GOLDEN + tl.load(clock) + 1)


@triton.jit
def _bits(key, counters):
    """`random.bits`."""
    return _mix((counters.to(tl.int64) + 1) * _GOLDEN + key)


@triton.jit
def _normal(key, counters):
    """`random.normal`."""
    bits = _bits(key, counters)
    uniform = (((bits >> 32) & 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    angle = (bits & 0xFFFFFFFF).to(tl.float32) * 1.4629180792671596e-09
    return tl.sqrt(-2 * tl.log(uniform)) * tl.cos(angle)


@triton.jit
def _mark_first_free(active, marks, owner, key, wanted, begin, end, BLOCK: tl.constexpr):
    """As `take_first_free of row.py`."""
    draw = tl.arange(0, BLOCK)
    num_found = tl.zeros([], dtype=tl.int64)
    while num_found < wanted:
        rest = _bits(key, draw) % (end - begin)  # of the sign of the bits
        place = tl.where(rest < 0, rest + (end - begin), rest) + begin
        is_free = tl.load(active + place) == 0
        tl.atomic_min(owner + place, draw, mask=is_free)
        tl.debug_barrier()
        is_first = tl.load(owner + place, mask=is_free, other=-1, volatile=True) == draw
        rank = num_found + tl.cumsum(is_first.to(tl.int32)) - 1
        tl.store(marks + place, tl.full([BLOCK], 2, dtype=tl.uint8), mask=is_first & (rank < wanted))
        num_found += tl.sum(is_first.to(tl.int32))
        draw += BLOCK


@triton.jit
def _mark_smallest(weights, GROWS: tl.constexpr, active, marks, key, wanted, begin, end, BLOCK: tl.constexpr):
    """Of the crossed weights leave the smallest marked; or mark the free places with the smallest random numbers.

    Among equal ones those that come first. The bound is found bit by bit: it is the largest number that fewer than
    `wanted` candidates lie below.
    """
    bound = tl.zeros([], dtype=tl.uint64)
    num_below = tl.zeros([], dtype=tl.int64)
    for bit in range(64):
        trial = bound | (tl.full([], 1, dtype=tl.uint64) << (63 - bit))
        below = tl.zeros([], dtype=tl.int64)
        for start in range(begin, end, BLOCK):
            number, is_candidate = _numbers(weights, GROWS, active, marks, key, start, begin, end, BLOCK)
            below += tl.sum((is_candidate & (number < trial)).to(tl.int64))
        bound = tl.where(below < wanted, trial, bound)
        num_below = tl.where(below < wanted, below, num_below)
    num_equal = tl.zeros([], dtype=tl.int64)
    for start in range(begin, end, BLOCK):
        number, is_candidate = _numbers(weights, GROWS, active, marks, key, start, begin, end, BLOCK)
        is_equal = is_candidate & (number == bound)
        rank = num_below + num_equal + tl.cumsum(is_equal.to(tl.int64))
        chosen = is_candidate & (number < bound) | is_equal & (rank <= wanted)
        num_equal += tl.sum(is_equal.to(tl.int64))
        unit = start + tl.arange(0, BLOCK)
        if GROWS:
            tl.store(marks + unit, tl.full([BLOCK], 2, dtype=tl.uint8), mask=chosen)
        else:
            tl.store(marks + unit, tl.zeros([BLOCK], dtype=tl.uint8), mask=is_candidate & (chosen == 0))


@triton.jit
def _numbers(weights, GROWS: tl.constexpr, active, marks, key, start, begin, end, BLOCK: tl.constexpr):
    """What the units of a block are compared by, as unsigned numbers, and which of them are candidates."""
    unit = start + tl.arange(0, BLOCK)
    inside = unit < end
    if GROWS:
        number = _bits(key, unit - begin) ^ (-9223372036854775807 - 1)  # so that signed order is unsigned order
        is_candidate = inside & (tl.load(active + unit, mask=inside, other=1) == 0)
    else:
        number = tl.abs(tl.load(weights + unit - begin, mask=inside, other=0)).to(tl.int32, bitcast=True).to(tl.int64)
        is_candidate = inside & (tl.load(marks + unit, mask=inside, other=0) == 1)
    return number.to(tl.uint64, bitcast=True), is_candidate
