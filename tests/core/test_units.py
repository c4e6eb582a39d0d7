"""Units: how a tensor is cut into what is pruned and grown as one."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regrow.core.units import Block, Layer, cut, granularity_of, is_cuttable, memory_order

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


# Writing to some units


def test_putting_a_number_sets_whole_units_and_nothing_else():
    tensor = numbered(2, 2, 2)
    cut("w", tensor, "kernel").put(tensor, torch.tensor([1, 2]), 0)
    assert tensor.flatten().tolist() == [1, 2, 0, 0, 0, 0, 7, 8]


def test_putting_to_output_channels_of_a_transposed_convolution():
    tensor = numbered(2, 2, 2)
    cut("w", tensor, "channel", output_dim=1).put(tensor, torch.tensor([1]), 0)
    assert tensor.flatten().tolist() == [1, 2, 0, 0, 5, 6, 0, 0]


def test_putting_reaches_state_that_is_laid_out_differently_from_its_weights():
    layer = cut("w", numbered(1, 2, 2, 2).to(memory_format=torch.channels_last), "weight")
    state = numbered(1, 2, 2, 2)
    layer.put(state, torch.tensor([1, 2]), 0)  # places 1 and 2 of the row hold 5 and 2
    assert state.flatten().tolist() == [1, 0, 3, 4, 0, 6, 7, 8]


@pytest.mark.parametrize("memory_format", list(FORMATS))
def test_each_weight_may_get_a_number_of_its_own(memory_format):
    tensor = FORMATS[memory_format](torch.zeros(2, 4))
    layer = cut("w", torch.zeros(2, 4), "weight")
    layer.put(tensor, torch.tensor([6, 1]), torch.tensor([0.6, 0.1]))
    assert torch.equal(tensor, torch.tensor([[0, 0.1, 0, 0], [0, 0, 0.6, 0]]))


def test_each_coarse_unit_may_get_a_number_of_its_own_too():
    tensor = torch.zeros(2, 2, 2)
    cut("w", tensor, "kernel").put(tensor, torch.tensor([3, 0]), torch.tensor([0.6, 0.1]))
    assert torch.equal(tensor, torch.tensor([[[0.1, 0.1], [0, 0]], [[0, 0], [0.6, 0.6]]]))


def test_a_number_of_each_unit_spreads_to_all_its_weights():
    tensor = torch.zeros(2, 2, 2)
    cut("w", tensor, "kernel").spread(torch.tensor([1.0, 2.0, 3.0, 4.0]), tensor)
    assert tensor.flatten().tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


# Masks


def test_a_unit_that_holds_anything_of_a_mask_is_one_of_its_units():
    mask = torch.tensor([[[1, 1], [0, 0]], [[0, 1], [0, 0]]]).bool()
    layer = cut("w", mask, "kernel")
    assert layer.reduce(mask).tolist() == [True, False, True, False]


def test_a_mask_cuts_a_unit_if_it_differs_within_it():
    whole = torch.tensor([[[1, 1], [0, 0]], [[0, 0], [1, 1]]]).bool()
    cutting = torch.tensor([[[1, 1], [0, 0]], [[0, 1], [1, 1]]]).bool()
    layer = cut("w", whole, "kernel")
    assert layer.cuts_no_unit(whole)
    assert not layer.cuts_no_unit(cutting)
    assert cut("w", cutting, "weight").cuts_no_unit(cutting)


# Where a unit lies


def test_the_index_of_a_weight_counts_along_its_own_dimensions():
    tensor = numbered(1, 2, 2, 2).to(memory_format=torch.channels_last)
    layer = cut("w", tensor, "weight")  # in the row: 1, 5, 2, 6, 3, 7, 4, 8
    places = torch.tensor([1, 2, 4])  # 5, 2 and 3: input 1 of pixel (0, 0), then (0, 1) and (1, 0) of input 0
    assert layer.index(places, 1).tolist() == [1, 0, 0]
    assert layer.index(places, 2).tolist() == [0, 0, 1]
    assert layer.index(places, 3).tolist() == [0, 1, 0]


def test_the_index_of_a_coarse_unit_is_counted_in_units():
    layer = cut("w", numbered(4, 6), Block(2, 3))  # 2 x 2 blocks
    places = torch.arange(4)
    assert layer.index(places, 0).tolist() == [0, 0, 1, 1]
    assert layer.index(places, 1).tolist() == [0, 1, 0, 1]


# Blocks


def test_a_block_is_rows_times_columns_of_a_matrix():
    tensor = torch.tensor([[1.0, -1.0, 4.0, 0.0], [3.0, -3.0, 0.0, 4.0]])
    layer = cut("w", tensor, Block(2, 2))
    assert (layer.num_units, layer.unit_size, layer.is_fine) == (2, 4, False)
    assert layer.flatten(tensor).tolist() == [2, 2]  # (1 + 1 + 3 + 3) / 4 and (4 + 4) / 4


def test_a_block_of_a_convolution_is_made_of_whole_kernels():
    layer = cut("w", torch.empty(4, 6, 3, 3), Block(2, 3))
    assert (layer.unit_shape, layer.grid, layer.unit_size) == ((2, 3, 3, 3), (2, 2, 1, 1), 54)


def test_the_rows_of_a_transposed_convolutions_block_are_outputs():
    layer = cut("w", torch.empty(6, 4, 3), Block(2, 3), output_dim=1)  # inputs, outputs, length
    assert layer.unit_shape == (3, 2, 3)


def test_a_block_of_one_weight_is_a_weight():
    transposed = numbered(2, 4).t()
    assert cut("w", transposed, Block(1, 1)) == cut("w", transposed, "weight")


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 8), (8,), (4,), (6, 8, 3, 3)])
def test_a_tensor_that_a_block_does_not_divide_is_refused(shape):
    tensor = torch.empty(shape)
    assert not is_cuttable(tensor, Block(4, 4))
    with pytest.raises(ValueError, match=r"fc.weight of shape \(.*\) cannot be cut into blocks of 4x4"):
        cut("fc.weight", tensor, Block(4, 4))


@pytest.mark.parametrize("granularity", ["weight", "kernel", "channel"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (3, 5, 7)])
def test_units_with_a_name_divide_every_tensor(granularity, shape):
    assert is_cuttable(torch.empty(shape), granularity)


def test_a_block_is_written_as_rows_x_columns():
    assert granularity_of("4x16") == Block(4, 16) == granularity_of(Block(4, 16))
    assert granularity_of(str(Block(4, 16))) == Block(4, 16)


@pytest.mark.parametrize("name", ["weight", "kernel", "channel"])
def test_a_granularity_with_a_name_is_written_as_that(name):
    assert granularity_of(name) == name


@pytest.mark.parametrize("text", ["weights", "4", "4x", "4x4x4", "-4x4", "4 x 4", "4.0x4", "", None, 4, (4, 4), [4, 4]])
def test_anything_else_is_no_granularity(text):
    with pytest.raises(ValueError, match=r"granularity must be one of .* or a block such as '4x4'"):
        granularity_of(text)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (4, 0), (-1, 4), (2.0, 4), (True, 4), ("4", 4)])
def test_a_block_has_whole_sides(rows, columns):
    with pytest.raises(ValueError, match="a block has whole numbers of rows and columns"):
        Block(rows, columns)


def test_a_written_block_of_nothing_is_refused_too():
    with pytest.raises(ValueError, match="a block has whole numbers of rows and columns, got 0 x 4"):
        granularity_of("0x4")


# The row of a layer


def test_memory_order_goes_from_slow_to_fast():
    assert memory_order(torch.empty(2, 3)) == (0, 1)
    assert memory_order(torch.empty(2, 3).t()) == (1, 0)
    assert memory_order(torch.empty(())) == ()


def test_layers_with_the_same_cut_are_equal():
    assert cut("w", numbered(2, 4), "weight") == Layer("w", (2, 4), (1, 1), (0, 1))


# Properties


GRANULARITIES = ["weight", "kernel", "channel", Block(1, 2), Block(2, 1), Block(2, 2)]


@st.composite
def layers(draw: st.DrawFn) -> tuple[Layer, torch.Tensor]:
    """A layer with a tensor of its shape, all numbers different."""
    shape = draw(shapes)
    output_dim = draw(st.integers(0, min(1, len(shape) - 1)))
    tensor = FORMATS[draw(st.sampled_from(list(FORMATS)))](numbered(*shape))
    granularity = draw(st.sampled_from([own for own in GRANULARITIES if is_cuttable(tensor, own, output_dim)]))
    return cut("w", tensor, granularity, output_dim), tensor


def number_of_unit(layer: Layer) -> torch.Tensor:
    """The number of the unit that each weight belongs to."""
    return layer.unflatten(torch.arange(layer.num_units))


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


@given(layers())
@settings(deadline=None)
def test_units_partition_the_tensor(case):
    layer, tensor = case
    numbers = number_of_unit(layer)
    assert numbers.shape == tensor.shape
    assert numbers.unique(return_counts=True)[1].tolist() == [layer.unit_size] * layer.num_units
    assert layer.num_units * layer.unit_size == layer.num_weights == tensor.numel()


@given(layers())
@settings(deadline=None)
def test_a_view_by_unit_holds_each_units_own_weights(case):
    layer, tensor = case
    view, numbers = layer.by_unit(tensor), number_of_unit(layer)
    assert view.data_ptr() == tensor.data_ptr()
    for unit, own in enumerate(view.reshape(layer.num_units, -1)):
        assert sorted(own.tolist()) == sorted(tensor[numbers == unit].tolist())


@given(layers(), st.sampled_from(list(FORMATS)), st.data())
@settings(deadline=None)
def test_putting_hits_exactly_the_units_named_in_any_layout(case, memory_format, data):
    layer, tensor = case
    tensor = FORMATS[memory_format](tensor.contiguous())
    named = data.draw(st.sets(st.integers(0, layer.num_units - 1)))
    flags = torch.zeros(layer.num_units, dtype=torch.bool)
    flags[list(named)] = True
    layer.put(tensor, flags.nonzero().flatten(), 0)
    assert torch.equal(tensor == 0, layer.unflatten(flags))


@given(layers(), st.sampled_from(list(FORMATS)))
@settings(deadline=None)
def test_a_topology_comes_back_from_the_mask_it_was_spread_to(case, memory_format):
    layer, tensor = case
    flags = torch.arange(layer.num_units) % 3 == 1
    mask = FORMATS[memory_format](torch.ones(tensor.shape, dtype=torch.bool))
    layer.spread(flags, mask)
    assert torch.equal(mask, layer.unflatten(flags))
    assert layer.cuts_no_unit(mask)
    assert layer.reduce(mask).tolist() == flags.tolist()


@given(layers())
@settings(deadline=None)
def test_units_are_numbered_by_their_indices(case):
    layer, _ = case
    places = torch.arange(layer.num_units)
    indices = [layer.index(places, dim) for dim in range(len(layer.shape))]
    corners = tuple(own * step for own, step in zip(indices, layer.unit_shape, strict=True))
    assert torch.equal(number_of_unit(layer)[corners], places)


@given(layers())
@settings(deadline=None)
def test_the_score_of_a_coarse_unit_is_the_mean_magnitude_of_its_own_weights(case):
    layer, tensor = case
    assume(not layer.is_fine)
    numbers = number_of_unit(layer)
    expected = [tensor[numbers == unit].mean().item() for unit in range(layer.num_units)]
    assert layer.flatten(-tensor).tolist() == pytest.approx(expected)


@given(layers(), st.data())
@settings(deadline=None)
def test_a_mask_with_one_weight_changed_cuts_a_unit_unless_weights_are_units(case, data):
    layer, tensor = case
    place = data.draw(st.integers(0, tensor.numel() - 1))
    mask = torch.zeros(tensor.shape, dtype=torch.bool)
    mask.view(-1)[place] = True
    assert layer.cuts_no_unit(mask) == layer.is_fine
    assert layer.reduce(mask).nonzero().flatten().tolist() == [number_of_unit(layer).flatten()[place]]


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=6, max_size=6), st.permutations(range(6)))
def test_the_mean_magnitude_of_a_unit_is_the_same_in_whatever_order_it_is_added_up(values, order):
    layer = cut("layer", torch.empty(1, 6), "channel")
    tensor = torch.tensor([values])
    assert torch.equal(layer.flatten(tensor), layer.flatten(tensor[:, list(order)]))
    assert torch.allclose(layer.flatten(tensor).double(), tensor.double().mean(), rtol=1e-7)
