"""The GPU kernels. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def zero_where_false(tensors, masks, sizes, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (b, t) looks at block b of tensor t: it reads a byte per place and writes where the mask is false."""
    which = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for t in tl.static_range(len(tensors)):
        if which == t:
            inside = at < sizes[t]
            keep = tl.load(masks[t] + at, mask=inside, other=1)
            zeros = tl.zeros([BLOCK], dtype=tensors[t].dtype.element_ty)
            tl.store(tensors[t] + at, zeros, mask=inside & (keep == 0))


@triton.jit  # type: ignore[untyped-decorator]
def draw_places(  # type: ignore[no-untyped-def]
    table, num_layers, active, owner, places, num_draws, found, num_wanted, BLOCK: tl.constexpr
):
    """Compute every draw's place; in `owner` each free place learns the number of the first draw that hit it.

    The rows of `table`: a layer's first draw, key, number of units, offset in the chunk. The bits are `chance.bits`.
    """
    if tl.program_id(0) == 0:
        tl.store(found + num_wanted, 0)
    draw = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = draw < num_draws
    layer = tl.zeros([BLOCK], dtype=tl.int64)
    for other in range(1, num_layers):
        layer += (draw >= tl.load(table + other)).to(tl.int64)
    first = tl.load(table + layer)
    key = tl.load(table + num_layers + layer)
    num_units = tl.load(table + 2 * num_layers + layer)
    offset = tl.load(table + 3 * num_layers + layer)

    bits = ((draw - first + 1) * -7046029254386353131 + key).to(tl.uint64, bitcast=True)
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    number = (bits ^ (bits >> 31)).to(tl.int64, bitcast=True)
    rest = number % num_units  # of the sign of the number
    place = tl.where(rest < 0, rest + num_units, rest) + offset

    tl.store(places + draw, place, mask=inside)
    is_free = tl.load(active + place, mask=inside, other=1) == 0
    tl.atomic_min(owner + place, draw.to(tl.int32), mask=inside & is_free)


@triton.jit  # type: ignore[untyped-decorator]
def take_first(table, num_layers, owner, places, found, num_wanted, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program l walks through the draws of layer l and writes down the first ones that own their place.

    Behind the `num_wanted` places, `found` has an entry that becomes 1 if any layer found too few.

    Further rows of `table`: how many places the layer wants, its number of draws, where it may write in `found`.
    """
    layer = tl.program_id(0)
    first = tl.load(table + layer)
    wanted = tl.load(table + 4 * num_layers + layer)
    num_draws = tl.load(table + 5 * num_layers + layer)
    start = tl.load(table + 6 * num_layers + layer)
    num_found = tl.zeros([], dtype=tl.int64)
    block = tl.zeros([], dtype=tl.int64)
    while (block < num_draws) & (num_found < wanted):
        at = block + tl.arange(0, BLOCK)
        inside = at < num_draws
        place = tl.load(places + first + at, mask=inside, other=0)
        is_good = (tl.load(owner + place, mask=inside, other=-1) == first + at) & inside
        rank = num_found + tl.cumsum(is_good.to(tl.int64)) - 1
        tl.store(found + start + rank, place, mask=is_good & (rank < wanted))
        num_found += tl.sum(is_good.to(tl.int64))
        block += BLOCK
    if num_found < wanted:
        tl.store(found + num_wanted, 1)
