"""Values that positions share, on a GPU. Imported only where Triton is installed."""

import triton
import triton.language as tl

from regrow.kernels.gpu.triton.row import _mix


@triton.jit(do_not_specialize=["key", "num_values", "num_positions"])
def spread_values(values, weight, key, num_values, num_positions, BLOCK: tl.constexpr):
    """Program b gives the positions of block b their values, with their signs."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_positions
    signed = _signed_index(position, key, num_values, num_positions)
    is_negative = signed >= num_values
    value = tl.load(values + tl.where(is_negative, signed - num_values, signed), mask=inside, other=0.0)
    tl.store(weight + position, tl.where(is_negative, -value, value), mask=inside)


@triton.jit(do_not_specialize=["key", "num_values", "num_positions"])
def add_by_value(pieces, largest, sums, key, num_values, num_positions, share, BLOCK: tl.constexpr):
    """Program b adds the pieces of block b, as whole numbers of units, to the sums of their values and signs."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_positions
    signed = _signed_index(position, key, num_values, num_positions)
    units = tl.load(pieces + position, mask=inside, other=0.0).to(tl.float64) / _unit(largest, share)
    shifted = (units + 6755399441055744.0) - 6755399441055744.0  # 1.5 * 2^52: what is behind the point is rounded off
    whole = tl.where(tl.abs(units) < 2251799813685248.0, shifted, units)  # from 2^51 on there is nothing behind it
    tl.atomic_add(sums + signed, whole.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["num_values"])
def take_differences(sums, largest, gradient, num_values, share, BLOCK: tl.constexpr):
    """Program b takes what was added with negative signs from what was added with positive ones."""
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = value < num_values
    unit = _unit(largest, share)
    plus = tl.load(sums + value, mask=inside, other=0).to(tl.float64) * unit
    minus = tl.load(sums + num_values + value, mask=inside, other=0).to(tl.float64) * unit
    tl.store(gradient + value, plus.to(tl.float32) - minus.to(tl.float32), mask=inside)


@triton.jit
def _signed_index(position, key, num_values, num_positions):
    """`storage.sharing.signed_index`."""
    half = (num_positions + 1) // 2
    is_second = position >= half
    counter = tl.where(is_second, position - half, position)
    bits = _mix((counter + 1) * -7046029254386353131 + key)  # random.bits
    drawn = tl.where(is_second, bits >> 32, bits) & 0xFFFFFFFF
    return drawn * (2 * num_values) >> 32


@triton.jit
def _unit(largest, share):
    """What pieces are counted in; not finite where the largest piece is not."""
    size = tl.load(largest).to(tl.float64)
    return tl.where(size < 1.1754943508222875e-38, 1.1754943508222875e-38, size) * share
