"""Units: how a tensor is cut into what is pruned and grown as one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.units import Layer, cut, memory_order

FORMATS = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
}
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


def test_weights_are_units_of_one_in_the_order_of_memory():
    layer = cut("w", numbered(2, 4), "weight")
    assert (layer.num_units, layer.unit_size, layer.num_weights, layer.is_fine) == (8, 1, 8, True)
    assert layer.flatten(numbered(2, 4)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_channels_last_weights_follow_their_memory():
    tensor = numbered(1, 2, 2, 2).to(memory_format=torch.channels_last)
    # In memory the two channels of a pixel are neighbours: 1, 5 then 2, 6 ...
    assert cut("w", tensor, "weight").flatten(tensor).tolist() == [1, 5, 2, 6, 3, 7, 4, 8]


def test_a_kernel_is_scored_by_its_mean_magnitude():
    tensor = torch.tensor([[[-1.0, 3.0], [0.0, 2.0]], [[1.0, -1.0], [-5.0, 1.0]]])  # 2 x 2 kernels of 2
    layer = cut("w", tensor, "kernel")
    assert (layer.num_units, layer.unit_size) == (4, 2)
    assert layer.flatten(tensor).tolist() == [2, 1, 1, 3]


def test_a_channel_is_all_that_makes_one_output():
    tensor = torch.tensor([[1.0, -1.0, 4.0, 2.0], [0.0, 0.0, -1.0, 1.0]])
    layer = cut("w", tensor, "channel")
    assert (layer.num_units, layer.unit_size) == (2, 4)
    assert layer.flatten(tensor).tolist() == [2, 0.5]


def test_transposed_convolutions_keep_their_outputs_in_the_second_dimension():
    tensor = torch.tensor([[[1.0], [3.0]], [[-1.0], [5.0]]])  # inputs, outputs, length
    layer = cut("w", tensor, "channel", output_dim=1)
    assert layer.flatten(tensor).tolist() == [1, 4]


@pytest.mark.parametrize("granularity", ["weight", "kernel"])
def test_a_matrix_has_kernels_of_one_weight(granularity):
    assert cut("w", numbered(2, 4), granularity).unit_size == 1


@pytest.mark.parametrize("granularity", ["weight", "kernel", "channel"])
def test_a_vector_is_cut_into_weights(granularity):
    assert cut("w", numbered(8), granularity).num_units == 8


def test_units_of_different_sizes_compare():
    small, large = torch.full((2, 2, 1, 1), 0.5), torch.full((2, 2, 5, 5), 0.5)
    scores = [cut("w", tensor, "kernel").flatten(tensor) for tensor in (small, large)]
    assert torch.equal(*scores)


def test_mean_magnitudes_of_half_precision_do_not_overflow():
    tensor = torch.full((1, 4096), 1000.0, dtype=torch.float16)
    assert cut("w", tensor, "channel").flatten(tensor).tolist() == [1000]


def test_zeroing_takes_whole_units_and_nothing_else():
    tensor = numbered(2, 2, 2)
    cut("w", tensor, "kernel").zero(tensor, torch.tensor([1, 2]))
    assert tensor.flatten().tolist() == [1, 2, 0, 0, 0, 0, 7, 8]


def test_zeroing_output_channels_of_a_transposed_convolution():
    tensor = numbered(2, 2, 2)
    cut("w", tensor, "channel", output_dim=1).zero(tensor, torch.tensor([1]))
    assert tensor.flatten().tolist() == [1, 2, 0, 0, 5, 6, 0, 0]


def test_zeroing_reaches_state_that_is_laid_out_differently_from_its_weights():
    layer = cut("w", numbered(1, 2, 2, 2).to(memory_format=torch.channels_last), "weight")
    state = numbered(1, 2, 2, 2)
    layer.zero(state, torch.tensor([1, 2]))  # places 1 and 2 of the row hold 5 and 2
    assert state.flatten().tolist() == [1, 0, 3, 4, 0, 6, 7, 8]


def test_memory_order_goes_from_slow_to_fast():
    assert memory_order(torch.empty(2, 3)) == (0, 1)
    assert memory_order(torch.empty(2, 3).t()) == (1, 0)
    assert memory_order(torch.empty(())) == ()


def test_layers_with_the_same_cut_are_equal():
    assert cut("w", numbered(2, 4), "weight") == Layer("w", (2, 4), (0, 1))


@given(shapes, st.sampled_from(list(FORMATS)))
@settings(deadline=None)
def test_a_row_of_weights_is_a_view_in_every_memory_format(shape, memory_format):
    tensor = FORMATS[memory_format](numbered(*shape))
    layer = cut("w", tensor, "weight")
    row = layer.flatten(tensor)
    assert row.data_ptr() == tensor.data_ptr()
    back = layer.unflatten(row)
    assert back.stride() == tensor.stride() or back.numel() == 1 or 1 in shape
    assert torch.equal(back, tensor)


@given(shapes, st.sampled_from(["weight", "kernel", "channel"]), st.sampled_from(list(FORMATS)))
@settings(deadline=None)
def test_units_partition_the_tensor(shape, granularity, memory_format):
    tensor = FORMATS[memory_format](numbered(*shape))
    layer = cut("w", tensor, granularity)
    numbers = layer.unflatten(torch.arange(layer.num_units)).expand(shape)
    assert numbers.unique(return_counts=True)[1].tolist() == [layer.unit_size] * layer.num_units
    assert layer.num_units * layer.unit_size == layer.num_weights == tensor.numel()


@given(shapes, st.sampled_from(["weight", "kernel", "channel"]), st.sampled_from(list(FORMATS)), st.data())
@settings(deadline=None)
def test_zeroing_hits_exactly_the_units_named_in_any_layout(shape, granularity, memory_format, data):
    layer = cut("w", FORMATS[memory_format](numbered(*shape)), granularity)
    tensor = FORMATS[data.draw(st.sampled_from(list(FORMATS)))](numbered(*shape))
    named = data.draw(st.sets(st.integers(0, layer.num_units - 1)))
    flags = torch.zeros(layer.num_units, dtype=torch.bool)
    flags[list(named)] = True
    layer.zero(tensor, flags.nonzero().flatten())
    assert torch.equal(tensor == 0, layer.unflatten(flags).expand(shape))


@given(shapes, st.sampled_from(["kernel", "channel"]), st.sampled_from(list(FORMATS)))
@settings(deadline=None)
def test_scores_are_those_of_each_units_own_weights(shape, granularity, memory_format):
    tensor = FORMATS[memory_format](-numbered(*shape))
    layer = cut("w", tensor, granularity)
    numbers = layer.unflatten(torch.arange(layer.num_units)).expand(shape)
    if not layer.is_fine:
        expected = [tensor[numbers == unit].abs().mean().item() for unit in range(layer.num_units)]
        assert layer.flatten(tensor).tolist() == pytest.approx(expected)
