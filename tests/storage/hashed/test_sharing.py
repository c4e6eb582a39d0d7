"""Sharing: which position has which value, and what a value's gradient is."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import random
from regrow.core.units import cut
from regrow.storage.hashed.sharing import Sharing, _collect, _expand, add_up, add_up_in_any_order, signed_index

CPU = torch.device("cpu")


def sharing_of(shape, num_values, key=1):
    return Sharing(cut("layer", torch.empty(shape), "weight"), num_values, key)


def test_six_positions_share_two_values():
    # Values a, b and their negatives -a, -b have the indices 0, 1, 2, 3.
    sharing = sharing_of((2, 3), 2, key=20)
    assert signed_index(20, 6, 2, CPU).tolist() == [1, 2, 3, 0, 0, 1]
    values = torch.tensor([10.0, 7.0], requires_grad=True)
    weight = sharing.expand(values)
    assert weight.tolist() == [[7, -10, -7], [10, 10, 7]]
    weight.backward(torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]))
    assert values.grad.tolist() == [-2 + 8 + 16, 1 - 4 + 32]


def test_a_value_starts_as_the_weight_at_its_first_position():
    weight = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    assert sharing_of((2, 3), 2, key=20).first_values(weight).tolist() == pytest.approx([-0.2, 0.1])


def test_a_value_without_a_position_starts_at_zero():
    first = sharing_of((1, 8), 40).first_values(torch.ones(1, 8))
    used = set((signed_index(1, 8, 40, CPU) % 40).tolist())
    assert [i for i, value in enumerate(first.tolist()) if value != 0] == sorted(used)


def test_positions_fall_on_values_and_signs_like_dice():
    """Counts of 40,000 throws at 2 x 200 places: the spread of a multinomial, and neighbours do not go together."""
    index = signed_index(random.key(3, 0, 0), 40_000, 200, CPU)
    counts = torch.bincount(index, minlength=400).double()
    chi_square = ((counts - 100).square() / 100).sum().item()
    assert abs(chi_square - 399) < 5 * math.sqrt(2 * 399)
    positive = (index < 200).double().mean().item()
    assert positive == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(40_000))
    assert (index[1:] == index[:-1]).double().mean().item() == pytest.approx(1 / 400, abs=0.0013)
    assert (index[20_000:] == index[:20_000]).double().mean().item() == pytest.approx(1 / 400, abs=0.0018)


@given(
    shape=st.sampled_from([(1, 1), (7,), (3, 5), (2, 3, 3, 3), (11, 13)]),
    num_values=st.integers(1, 150),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(deadline=None)
def test_a_values_gradient_is_the_signed_sum_over_its_positions(shape, num_values, key, dtype):
    sharing = sharing_of(shape, num_values, key)
    index = signed_index(key, math.prod(shape), num_values, CPU).tolist()
    values = torch.arange(1, num_values + 1).to(dtype).requires_grad_()
    weight = sharing.expand(values)
    sign = [1 if i < num_values else -1 for i in index]
    assert weight.flatten().tolist() == [s * values[i % num_values].item() for s, i in zip(sign, index, strict=True)]
    gradient = torch.randint(-4, 5, shape).to(dtype)
    weight.backward(gradient)
    expected = [0.0] * num_values
    for s, i, g in zip(sign, index, gradient.flatten().tolist(), strict=True):
        expected[i % num_values] += s * g
    assert values.grad.tolist() == expected


def test_first_and_second_derivatives_are_those_of_finite_differences():
    values = torch.randn(4, dtype=torch.float64, requires_grad=True)
    expand = sharing_of((3, 5), 4).expand
    assert torch.autograd.gradcheck(expand, values)
    assert torch.autograd.gradgradcheck(lambda v: expand(v).square(), values)


def test_the_operators_keep_the_rules_of_torch():
    values = torch.randn(4, requires_grad=True)
    torch.library.opcheck(_expand, (values, (2, 3, 2, 2), (0, 2, 3, 1), 7))
    torch.library.opcheck(_collect, (torch.randn(3, 5, requires_grad=True), 4, (0, 1), 7))


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=60), st.integers(1, 5))
@settings(deadline=None)
def test_sums_in_any_order_are_the_same_to_the_last_bit_and_right(pieces, size):
    """What a GPU computes; float additions there come in any order."""
    pieces = torch.tensor(pieces)
    index = torch.arange(len(pieces)) * 7 % size
    order = torch.randperm(len(pieces))
    sums = add_up_in_any_order(pieces, index, size)
    assert torch.equal(sums, add_up_in_any_order(pieces[order], index[order], size))
    exact = add_up(pieces.double(), index, size)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=1e-7 * pieces.abs().max().item())


def test_sums_in_any_order_of_nothing_and_of_too_much():
    assert add_up_in_any_order(torch.zeros(5), torch.zeros(5).long(), 2).tolist() == [0, 0]
    for bad in (math.inf, -math.inf, math.nan):
        poisoned = add_up_in_any_order(torch.tensor([1.0, bad]), torch.tensor([0, 1]), 2)
        assert not poisoned.isfinite().any(), "a scaler must see it"
