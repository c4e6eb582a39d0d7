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


@triton.jit(do_not_specialize=["num_layers"])
def take_first_free(table, num_layers, active, owner, places, found, BLOCK: tl.constexpr):
    """Program l takes the first free places in the random sequence of layer l; `rules.grow.at_random` says why.

    The rows of `table`: a layer's number, units, offset in the chunk, wanted places, number of draws, where its draws
    lie in `places`, where it may write in `found`, where in `found` it tells how many it found, the base of the keys.
    In `owner` each free place that is hit learns the number of the first draw that hit it.

    Everything that differs from call to call is in the table: Triton would compile anew for other plain numbers.
    """
    layer = tl.program_id(0)
    number = tl.load(table + layer)
    num_units = tl.load(table + num_layers + layer)
    offset = tl.load(table + 2 * num_layers + layer)
    wanted = tl.load(table + 3 * num_layers + layer)
    num_draws = tl.load(table + 4 * num_layers + layer)
    places += tl.load(table + 5 * num_layers + layer)
    found_here = found + tl.load(table + 6 * num_layers + layer)
    tell = found + tl.load(table + 7 * num_layers + layer)
    layer_key = _mix(tl.load(table + 8 * num_layers + layer) + number)  # chance.keys
    nobody = 2147483647

    for block in range(0, num_draws, BLOCK):
        draw = block + tl.arange(0, BLOCK)
        inside = draw < num_draws
        bits = _mix((draw.to(tl.int64) + 1) * -7046029254386353131 + layer_key)  # chance.bits
        rest = bits % num_units  # of the sign of the bits
        place = tl.where(rest < 0, rest + num_units, rest) + offset
        tl.store(places + draw, place, mask=inside)
        tl.store(owner + place, nobody, mask=inside)
    tl.debug_barrier()
    for block in range(0, num_draws, BLOCK):
        draw = block + tl.arange(0, BLOCK)
        place = tl.load(places + draw, mask=draw < num_draws, other=0)
        is_free = tl.load(active + place, mask=draw < num_draws, other=1) == 0
        tl.atomic_min(owner + place, draw.to(tl.int32), mask=(draw < num_draws) & is_free)
    tl.debug_barrier()
    num_found = tl.zeros([], dtype=tl.int64)
    for block in range(0, num_draws, BLOCK):
        draw = block + tl.arange(0, BLOCK)
        inside = draw < num_draws
        place = tl.load(places + draw, mask=inside, other=0)
        is_good = (tl.load(owner + place, mask=inside, other=-1, volatile=True) == draw) & inside
        rank = num_found + tl.cumsum(is_good.to(tl.int64)) - 1
        tl.store(found_here + rank, place, mask=is_good & (rank < wanted))
        num_found += tl.sum(is_good.to(tl.int64))
    tl.store(tell, num_found)


@triton.jit
def _mix(number):
    """`chance._mix`."""
    x = number.to(tl.uint64, bitcast=True)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)
