"""The GPU kernels. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_layers", "first_layer"])
def zero_where_false(tensors, table, num_layers, first_layer, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Program (b, t) looks at block b of tensor t: it reads a byte per place and writes where the mask is false.

    `tensors` has `EACH` for every layer. The rows of `table`: the address of a layer's mask, and its size.
    """
    which = tl.program_id(1)
    layer = first_layer + which // EACH
    mask = tl.load(table + layer).to(tl.pointer_type(tl.int8))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.load(table + num_layers + layer)
    is_inactive = tl.load(mask + at, mask=inside, other=1) == 0
    for t in tl.static_range(len(tensors)):
        if which == t:
            zeros = tl.zeros([BLOCK], dtype=tensors[t].dtype.element_ty)
            tl.store(tensors[t] + at, zeros, mask=inside & is_inactive)


@triton.jit
def count_below(blocks, like, active, bound, of_block, BLOCK: tl.constexpr):
    """Program b tells in `of_block` how many units of block b are below a bound; -1 if any of its values is not finite.

    The columns of `blocks`: the address of the values, which are of the dtype of `like`; the first unit, by which
    `active` is numbered; where the block's layer ends.
    """
    block = tl.program_id(0)
    _, magnitude, is_below = _compare(blocks + 3 * block, like, active, bound, BLOCK)
    num_finite = tl.sum((magnitude < float("inf")).to(tl.int32))
    tl.store(of_block + block, tl.where(num_finite == BLOCK, tl.sum(is_below.to(tl.int32)), -1))


@triton.jit
def list_below(blocks, like, active, bound, of_block, positions, BLOCK: tl.constexpr):
    """Program b writes the positions of those units, behind those of all earlier blocks."""
    block = tl.program_id(0)
    before = tl.zeros([1024], dtype=tl.int32)
    for start in range(0, block, 1024):
        earlier = start + tl.arange(0, 1024)
        before += tl.load(of_block + earlier, mask=earlier < block, other=0)
    unit, _, is_below = _compare(blocks + 3 * block, like, active, bound, BLOCK)
    rank = tl.sum(before) + tl.cumsum(is_below.to(tl.int32)) - 1
    tl.store(positions + rank, unit, mask=is_below)


@triton.jit
def _compare(block, like, active, bound, BLOCK: tl.constexpr):
    """The units of a block, their magnitudes, and which of them are active and below the bound."""
    values = tl.load(block).to(tl.pointer_type(like.dtype.element_ty))
    at = tl.arange(0, BLOCK)
    unit = tl.load(block + 1) + at
    inside = unit < tl.load(block + 2)
    magnitude = tl.abs(tl.load(values + at, mask=inside, other=0))
    is_active = tl.load(active + unit, mask=inside, other=0) != 0
    return unit, magnitude, is_active & (magnitude < bound)


@triton.jit(do_not_specialize=["num_layers"])
def take_smallest(table, num_layers, like, positions, numbers, found, BLOCK: tl.constexpr):
    """Program l finds the smallest of the units of layer l whose positions are listed; among equal ones the first.

    `table` says where each layer begins in `positions` and where in `found`, and from which address positions count to
    its values, of the dtype of `like`. Magnitudes are kept in `numbers` as whole numbers of the same order, and
    the bound is found bit by bit: it is the largest that fewer than are wanted lie below.
    """
    layer = tl.program_id(0)
    begin, end = tl.load(table + layer), tl.load(table + layer + 1)
    of_found = table + num_layers + 1 + layer
    first = tl.load(of_found)
    wanted = tl.load(of_found + 1) - first
    values = tl.load(of_found + num_layers + 1).to(tl.pointer_type(like.dtype.element_ty))
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        position = tl.load(positions + at, mask=at < end, other=0)
        magnitude = tl.abs(tl.load(values + position, mask=at < end, other=0).to(tl.float32))
        tl.store(numbers + at, magnitude.to(tl.int32, bitcast=True), mask=at < end)
    tl.debug_barrier()
    bound = tl.zeros([], dtype=tl.int32)
    num_below = tl.zeros([], dtype=tl.int64)
    for bit in range(31):
        trial = bound | (tl.full([], 1, dtype=tl.int32) << (30 - bit))
        below = tl.zeros([], dtype=tl.int64)
        for start in range(begin, end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            number = tl.load(numbers + at, mask=at < end, other=2147483647)
            below += tl.sum((number < trial).to(tl.int32))
        bound = tl.where(below < wanted, trial, bound)
        num_below = tl.where(below < wanted, below, num_below)
    num_found = tl.zeros([], dtype=tl.int64)
    num_equal = tl.zeros([], dtype=tl.int64)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        number = tl.load(numbers + at, mask=at < end, other=2147483647)
        is_equal = number == bound
        rank_of_equal = num_below + num_equal + tl.cumsum(is_equal.to(tl.int32))
        is_chosen = (number < bound) | is_equal & (rank_of_equal <= wanted)
        rank = num_found + tl.cumsum(is_chosen.to(tl.int32)) - 1
        position = tl.load(positions + at, mask=is_chosen, other=0)
        tl.store(found + first + rank, position, mask=is_chosen)
        num_found += tl.sum(is_chosen.to(tl.int32))
        num_equal += tl.sum(is_equal.to(tl.int32))


@triton.jit(do_not_specialize=["first_layer", "num_layers"])
def take_first_free(table, bounds, first_layer, num_layers, active, owner, found, BLOCK: tl.constexpr):
    """Program l takes the first free places in the random sequence of layer l; `selections.draw_free` says why.

    `bounds` say where each layer begins in `active` and `owner`, `table` where it begins in `found`, and behind that is
    the base of the keys. In `owner`, where every entry must be the largest number, each free place that is hit learns
    the number of the first draw that hit it.

    Everything that differs from call to call is in the table: Triton would compile anew for other plain numbers.
    """
    layer = tl.program_id(0)
    begin = tl.load(bounds + layer)
    num_units = tl.load(bounds + layer + 1) - begin
    wanted = tl.load(table + layer + 1) - tl.load(table + layer)
    found += tl.load(table + layer)
    layer_key = _mix(tl.load(table + num_layers + 1) + first_layer + layer)  # random.keys
    draw = tl.arange(0, BLOCK)
    num_found = tl.zeros([], dtype=tl.int64)
    while num_found < wanted:
        bits = _mix((draw.to(tl.int64) + 1) * -7046029254386353131 + layer_key)  # random.bits
        rest = bits % num_units  # of the sign of the bits
        place = tl.where(rest < 0, rest + num_units, rest) + begin
        is_free = tl.load(active + place) == 0
        tl.atomic_min(owner + place, draw, mask=is_free)
        tl.debug_barrier()
        is_first = tl.load(owner + place, mask=is_free, other=-1, volatile=True) == draw
        rank = num_found + tl.cumsum(is_first.to(tl.int32)) - 1
        tl.store(found + rank, place, mask=is_first & (rank < wanted))
        num_found += tl.sum(is_first.to(tl.int32))
        draw += BLOCK


@triton.jit
def _mix(number):
    """`random._mix`."""
    x = number.to(tl.uint64, bitcast=True)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)
