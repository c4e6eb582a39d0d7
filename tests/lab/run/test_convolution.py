"""The gradient of a convolution's weights in parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.lab.run.convolution import CHANNELS_IN, plan, weight_gradient


@given(num_in=st.sampled_from(CHANNELS_IN), num_pixels=st.integers(1, 10**6), size=st.sampled_from([1, 3]))
def test_parts_hold_all_pixels_and_none_is_empty(num_in: int, num_pixels: int, size: int):
    how = plan(num_in, num_pixels, size)
    part = 64 * how.blocks_per_part
    assert part * (how.num_parts - 1) < num_pixels <= part * how.num_parts


@given(num_in=st.sampled_from(CHANNELS_IN), size=st.sampled_from([1, 3]))
def test_blocks_of_columns_are_as_gpus_want_them(num_in: int, size: int):
    """A power of two, at least 16; a block ends where a place in the kernel does, or holds the whole row."""
    columns = plan(num_in, 1000, size).columns
    assert columns >= 16
    assert columns & (columns - 1) == 0
    assert columns >= size * num_in or columns == num_in


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
def test_it_is_what_autograd_says(size: int, stride: int):
    images = torch.randn(2, 3, 6, 6)
    weight = torch.randn(16, 3, size, size, requires_grad=True)
    out = torch.nn.functional.conv2d(images, weight, stride=stride, padding=size // 2)
    slopes = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, weight, slopes)
    torch.testing.assert_close(weight_gradient(slopes, images, size, stride), expected)


def test_torch_knows_what_it_gives():
    images, slopes = torch.randn(2, 3, 6, 6), torch.randn(2, 16, 6, 6)
    torch.library.opcheck(weight_gradient, (slopes, images, 3, 1))
