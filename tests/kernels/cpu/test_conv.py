"""Convolutions computed on their nonzeros."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.kernels.cpu.conv import conv_backward, conv_forward
from regrow.kernels.cpu.planes import Convolution, planes_for
from sparse_layers import CONVOLVE, convolutions, from_dense, random_layer, random_tensor

THREE_BY_THREE = Convolution((3, 3), (1, 1), (1, 1), (1, 1))


def test_one_tap_is_one_shift_of_the_picture():
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 0, 1] = 10  # every pixel gets ten times the one above it
    layer = from_dense(weight)
    x = torch.tensor([[[[1.0, 2], [3, 4]]]])
    assert conv_forward(layer.pattern, layer.values, x, THREE_BY_THREE).tolist() == [[[[0, 0], [10, 20]]]]
    dx, gradient = conv_backward(layer.pattern, layer.values, x, torch.ones(1, 1, 2, 2), THREE_BY_THREE)
    assert dx is not None
    assert dx.tolist() == [[[[10, 10], [0, 0]]]]
    assert gradient.tolist() == [1 + 2]


def test_lines_share_their_margin():
    # A 3 x 3 kernel reaches one pixel over each edge; one more pixel per line and one more line serve both.
    assert planes_for(THREE_BY_THREE, (8, 8), 16, 1).size == (1, 9, 9)
    assert planes_for(Convolution((1, 1), (1, 1), (0, 0), (1, 1)), (8, 8), 16, 1).size == (1, 8, 8)


def test_a_stride_splits_a_picture_into_phases():
    # With stride 2 taps 0 and 2 of the kernel read the odd pixels, one of them a place earlier; tap 1 the even ones.
    planes = planes_for(Convolution((3,), (2,), (1,), (1,)), (8,), 1, 1)
    assert planes.size == (1, 1, 5)
    half = planes.images_at_once * 5
    assert planes.taps.tolist() == [half - 1, 0, half]


@given(convolutions(), st.integers(0, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.2, 1.0]))
@settings(deadline=None, max_examples=150)
def test_all_agrees_with_the_dense_layer(setting, num_images, channels, rows, density):
    convolution, size = setting
    groups = convolution.groups
    layer = random_layer(groups * rows, channels, *convolution.kernel_size, density=density)
    x, weight, bias = random_tensor(num_images, groups * channels, *size), layer.weight, random_tensor(groups * rows)
    inputs = (x.clone().requires_grad_(), weight.clone().requires_grad_())
    settings_ = (convolution.stride, convolution.padding, convolution.dilation, groups)
    expected = CONVOLVE[len(size)](inputs[0], inputs[1], bias, *settings_)
    dy = random_tensor(*expected.shape, seed=2)
    wanted = torch.autograd.grad(expected, inputs, dy)

    y = conv_forward(layer.pattern, layer.values, x, convolution, bias)
    dx, gradient = conv_backward(layer.pattern, layer.values, x, dy, convolution)
    alone = conv_backward(layer.pattern, layer.values, x, dy, convolution, needs_input=False)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(dx, wanted[0])
    torch.testing.assert_close(gradient, layer.at_entries(wanted[1]))
    assert alone[0] is None
    assert torch.equal(alone[1], gradient)


def test_channels_last_and_slices_need_no_copy():
    layer = random_layer(8, 6, 3, 3, density=0.3)
    x = random_tensor(4, 6, 9, 9).to(memory_format=torch.channels_last)[:, :, 1:, ::2]
    expected = torch.nn.functional.conv2d(x, layer.weight, padding=1)
    dy = random_tensor(*expected.shape).transpose(2, 3).contiguous().transpose(2, 3)
    dx, _ = conv_backward(layer.pattern, layer.values, x, dy, THREE_BY_THREE)
    torch.testing.assert_close(conv_forward(layer.pattern, layer.values, x, THREE_BY_THREE), expected)
    torch.testing.assert_close(dx, torch.nn.functional.conv_transpose2d(dy, layer.weight, padding=1))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_same_bits_every_time(num_threads):
    layer = random_layer(32, 32, 3, 3, density=0.3, dtype=torch.float32)
    x, dy = random_tensor(7, 32, 9, 9, dtype=torch.float32), random_tensor(7, 32, 9, 9, seed=2, dtype=torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    results = [
        (
            conv_forward(layer.pattern, layer.values, x, THREE_BY_THREE),
            *conv_backward(layer.pattern, layer.values, x, dy, THREE_BY_THREE),
        )
        for _ in range(5)
    ]
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results for a, b in zip(results[0], other, strict=True))


def test_images_with_other_channels_are_refused():
    layer = random_layer(4, 3, 3, 3, density=0.4)
    with pytest.raises(ValueError, match="3 channels"):
        conv_forward(layer.pattern, layer.values, random_tensor(1, 4, 5, 5), THREE_BY_THREE)
