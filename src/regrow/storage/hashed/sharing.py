"""Many positions, few values: the hashing trick (Chen et al., ICML 2015).

    weight[position] = sign(position) * values[index(position)]

Index and sign come together, as one number below 2 * num_values made of 32 random bits: those in its upper half are
the negative ones. They are computed wherever they are needed and never kept, the same on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.units import Layer
from regrow.kernels.gpu.spread import can_spread, collect, spread

_BITS = 32


@dataclass(frozen=True)
class Sharing:
    """How the positions of a layer, numbered in logical order, share `num_values` values."""

    layer: Layer
    num_values: int
    key: int

    def expand(self, values: Tensor) -> Tensor:
        """The weights of the layer, in its own memory format, differentiable in the values."""
        weight: Tensor = _expand(values, self.layer.shape, self.layer.unit_dims, random.signed(self.key))
        return weight

    def first_values(self, weight: Tensor) -> Tensor:
        """Values to start with: each is the weight at the first of its positions, 0 where it has none.

        So a weight of the expanded layer has the law of the given ones. Nothing is scaled because of the sharing: the
        signs are random, so terms with a common value are uncorrelated, and a sum of weighted inputs has the variance
        that independent weights would give it.
        """
        num_positions, device = self.layer.num_weights, weight.device
        signed = signed_index(self.key, num_positions, self.num_values, device)
        is_negative = signed >= self.num_values
        index = torch.where(is_negative, signed - self.num_values, signed)
        first = torch.full((self.num_values,), num_positions, device=device)
        first.scatter_reduce_(0, index, torch.arange(num_positions, device=device), "amin")
        flat = weight.reshape(-1)
        of_position = torch.cat([torch.where(is_negative, -flat, flat), flat.new_zeros(1)])
        return of_position.index_select(0, first)


def signed_index(key: int, num_positions: int, num_values: int, device: torch.device) -> Tensor:
    """For every position the index of its value, plus `num_values` where its sign is negative."""
    assert num_values < 1 << (_BITS - 2), "the product below would overflow"
    # Half the cost: the low bits of a draw serve the first half of the positions, the high bits the second.
    raw = random.bits(key, torch.arange((num_positions + 1) // 2, device=device))
    drawn = torch.cat([raw, raw >> _BITS])[:num_positions].bitwise_and_((1 << _BITS) - 1)
    return drawn.mul_(2 * num_values).bitwise_right_shift_(_BITS)


def _layer(shape: Sequence[int], order: Sequence[int]) -> Layer:
    return Layer("", tuple(shape), (1,) * len(shape), tuple(order))


# Two operators, each the other's gradient, that save nothing: the index is computed again. A compiler calls them as
# they are; where it was left to trace them it got 64-bit arithmetic wrong (inductor of torch 2.13, one CPU thread).


@torch.library.custom_op("regrow::expand", mutates_args=())
def _expand(values: Tensor, shape: Sequence[int], order: Sequence[int], key: int) -> Tensor:
    if can_spread(values):
        dense = spread(values, prod(shape), key)
    else:
        both = torch.cat([values, -values])
        dense = both.index_select(0, signed_index(key, prod(shape), len(values), values.device))
    layer = _layer(shape, order)
    return layer.unflatten(layer.flatten(dense.view(shape)))


@torch.library.custom_op("regrow::collect", mutates_args=())
def _collect(gradient: Tensor, num_values: int, order: Sequence[int], key: int) -> Tensor:
    """The gradient of the values: for each the signed sum over its positions."""
    pieces = gradient.reshape(-1)
    if can_spread(pieces):
        return collect(pieces, num_values, key, _share(len(pieces)))
    both = add_up(pieces, signed_index(key, len(pieces), num_values, pieces.device), 2 * num_values)
    return both[:num_values] - both[num_values:]


@_expand.register_fake
def _(values: Tensor, shape: Sequence[int], order: Sequence[int], key: int) -> Tensor:
    return _layer(shape, order).unflatten(values.new_empty(prod(shape)))


@_collect.register_fake
def _(gradient: Tensor, num_values: int, order: Sequence[int], key: int) -> Tensor:
    return gradient.new_empty(num_values)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    given, _, ctx.order, ctx.key = inputs
    ctx.given_shape = given.shape


def _gradient_of_expand(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _collect(gradient, ctx.given_shape[0], ctx.order, ctx.key), None, None, None


def _gradient_of_collect(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _expand(gradient, ctx.given_shape, ctx.order, ctx.key), None, None, None


_expand.register_autograd(_gradient_of_expand, setup_context=_remember)
_collect.register_autograd(_gradient_of_collect, setup_context=_remember)


def add_up(pieces: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums of the pieces with the same index, with the same bits every time; in float32 where pieces are coarser."""
    pieces_wide = pieces if pieces.dtype == torch.float64 else pieces.float()
    if pieces.is_cuda:
        sums = add_up_in_any_order(pieces_wide, index, size)
    else:
        sums = pieces_wide.new_zeros(size).scatter_add_(0, index, pieces_wide)
    return sums.to(pieces.dtype)


def add_up_in_any_order(pieces: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums that do not depend on the order of adding, which atomic additions of a GPU leave open.

    Pieces become whole multiples of a unit, small enough that nothing is lost against float32 near the largest piece
    (2^-40 of it with four million pieces) and large enough that no sum of 64-bit integers overflows. If any piece is
    not finite, no sum is.
    """
    largest = pieces.abs().amax().double().clamp_min(torch.finfo(torch.float32).tiny)
    unit = largest * _share(len(pieces))
    whole = (pieces.double() / unit).round_().long()
    sums = torch.zeros(size, dtype=torch.int64, device=pieces.device).scatter_add_(0, index, whole)
    return (sums.double() * unit).to(pieces.dtype)


def _share(num_pieces: int) -> float:
    """What of the largest piece pieces are counted in."""
    return 2.0 ** (num_pieces.bit_length() - 62)
