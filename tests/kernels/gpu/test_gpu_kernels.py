"""The GPU kernels find, fill and add up what plain torch does."""

from dataclasses import replace

import pytest
import torch

import regrow
from regrow.core import random
from regrow.core.row import cut_into_chunks
from regrow.core.selections import _first_free, k_smallest_each
from regrow.core.units import cut
from regrow.kernels.gpu import compare as comparing
from regrow.kernels.gpu import draw as drawing
from regrow.kernels.gpu import spread as spreading
from regrow.kernels.gpu.zero import Masks
from regrow.lab.run.convolution import CHANNELS_IN, CHANNELS_OUT, weight_gradient
from regrow.storage.hashed.sharing import Sharing, add_up_in_any_order, signed_index

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def check_zeroing(tensors, masks):
    expected = [[tensor.masked_fill(~mask, 0) for tensor in own] for own, mask in zip(tensors, masks, strict=True)]
    assert Masks(masks, masks[0].device).zero_inactive(tensors)
    assert all(
        torch.equal(a, b)
        for own, answer in zip(tensors, expected, strict=True)
        for a, b in zip(own, answer, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_kernel_fills_exactly_the_inactive_places(dtype, memory_format):
    shapes = [(1, 1, 1, 1), (7, 5, 3, 3), (64, 33, 1, 1), (130, 70, 3, 3)] * 10  # more than one launch holds
    tensors = [torch.randn(shape, device=DEVICE).to(dtype, memory_format=memory_format) for shape in shapes]
    masks = [torch.empty_like(t, dtype=torch.bool).copy_(torch.rand(t.shape, device=DEVICE) < 0.3) for t in tensors]
    for tensor in tensors:
        tensor[..., 0] = torch.inf
    check_zeroing([[tensor] for tensor in tensors], masks)


def test_layers_may_bring_several_tensors_of_several_dtypes():
    masks = [torch.rand(17, 9, device=DEVICE) < 0.3 for _ in range(50)]
    tensors = [[torch.randn(17, 9, device=DEVICE), torch.randn(17, 9, device=DEVICE).half()] for _ in masks]
    check_zeroing(tensors, masks)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_layers_that_bring_different_numbers_of_tensors_are_left_to_the_slow_way(missing):
    masks = [torch.rand(17, 9, device=DEVICE) < 0.3 for _ in range(3)]
    tensors = [[] if i == missing else [torch.ones(17, 9, device=DEVICE)] for i in range(3)]
    assert not Masks(masks, masks[0].device).zero_inactive(tensors)
    assert all(bool(tensor.all()) for own in tensors for tensor in own)


def test_strides_that_differ_from_the_mask_are_left_to_the_slow_way():
    tensor = torch.ones(8, 16, device=DEVICE).t()
    assert not Masks([torch.rand(16, 8, device=DEVICE) < 0.5], tensor.device).zero_inactive([[tensor]])
    assert bool(tensor.all())


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_dense_storage_zeroes_in_whichever_way(missing):
    model = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Linear(17, 5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=0.7))
    for i, layer in enumerate(model):
        layer.weight.grad = None if i == missing else torch.full_like(layer.weight, torch.inf).t().contiguous().t()
    sparse.mask_gradients()
    for i, (layer, mask) in enumerate(zip(model, sparse.masks().values(), strict=True)):
        assert i == missing or torch.equal(layer.weight.grad != 0, mask)


def some_layers(sizes, density=0.1):
    """A chunk on the GPU behind three other layers, its flat values and which of its units are active."""
    generator = torch.Generator().manual_seed(2)
    values = [torch.randn(size, generator=generator) for size in [1, 1, 1, *sizes]]
    layers = [cut(f"layer{i}", value, "weight") for i, value in enumerate(values)]
    devices = [torch.device("cpu")] * 3 + [torch.device(DEVICE, 0)] * len(sizes)
    chunk = cut_into_chunks(layers, devices)[-1]
    assert chunk.first == 3
    active = torch.rand(sum(sizes), generator=generator) < density
    return chunk, [value.to(DEVICE) for value in values[3:]], active.to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("sizes", [[1, 8192, 70_001, 5, 8193], [300, 7, 9_000_000, 300]])
def test_the_units_below_a_bound_are_those_that_plain_torch_finds(dtype, sizes):
    chunk, values, active = some_layers(sizes, density=0.4)
    pieces = [value.to(dtype) for value in values]
    bound = float(pieces[2].abs().median())
    positions, counts = comparing.below(chunk, pieces, active, bound)
    expected = [(piece.abs() < bound) & flags for piece, flags in zip(pieces, chunk.split(active), strict=True)]
    assert torch.equal(positions, torch.cat(expected).nonzero().flatten())
    assert counts == [int(flags.sum()) for flags in expected]


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 8192, 70_000])
def test_nothing_is_below_a_bound_where_a_value_is_not_finite(poison, place):
    chunk, pieces, active = some_layers([5, 70_001, 70_001])
    pieces[1][place] = poison
    assert comparing.below(chunk, pieces, active, 0.5) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [[1, 8192, 70_001, 5, 8193], [300, 7, 9_000_000, 300]])
@pytest.mark.parametrize("levels", [3, 2**20])
def test_the_smallest_units_are_those_that_plain_torch_finds(dtype, sizes, levels):
    chunk, values, active = some_layers(sizes, density=0.4)
    pieces = [((value * levels).round() / levels).to(dtype) for value in values]  # with many ties, or few
    counts = [int(flags.sum()) for flags in chunk.split(active)]
    for share in (0, 0.001, 0.3, 1):
        wanted = [round(share * count) for count in counts]
        found = comparing.smallest(chunk, pieces, active, wanted)
        positions = active.nonzero().flatten()
        magnitude = torch.cat(pieces).float()[positions].abs()
        assert torch.equal(found, positions[k_smallest_each(magnitude, counts, wanted)])


def test_the_smallest_are_not_looked_for_where_a_value_is_not_finite_or_has_64_bits():
    chunk, pieces, active = some_layers([5, 70_001])
    assert comparing.smallest(chunk, [piece.double() for piece in pieces], active, [1, 1]) is None
    pieces[1][7] = torch.nan
    assert comparing.smallest(chunk, pieces, active, [1, 1]) is None


@pytest.mark.parametrize("share", [0.001, 0.03, 0.125])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.95])
def test_the_first_free_places_are_those_that_the_cpu_finds(share, density):
    chunk, _, active = some_layers([1, 64, 1000, 7, 70_001, 1_000_000, 2048], density)
    free = [int((~flags).sum()) for flags in chunk.split(active)]
    wanted = [int(share * n) for n in free]
    found = drawing.first_free(chunk, wanted, active, key=77)
    on_cpu = replace(chunk, device=torch.device("cpu"))
    assert torch.equal(found.cpu(), _first_free(on_cpu, wanted, free, active.cpu(), 77))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("num_in", CHANNELS_IN)
@pytest.mark.parametrize("num_out", CHANNELS_OUT)
def test_weight_gradients_are_those_of_float64_but_for_rounding(dtype, size, stride, num_in, num_out):
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(7, num_in, 13, 11, generator=generator).to(DEVICE, dtype, memory_format=torch.channels_last)
    slopes = torch.randn(7, num_out, -(-13 // stride), -(-11 // stride), generator=generator)
    slopes = slopes.to(DEVICE, dtype, memory_format=torch.channels_last)
    found = weight_gradient(slopes, images, size, stride)
    expected = weight_gradient(slopes.cpu().double(), images.cpu().double(), size, stride)
    assert (found.cpu().double() - expected).norm() < 3e-3 * expected.norm()
    assert all(torch.equal(found, weight_gradient(slopes, images, size, stride)) for _ in range(3))


def test_the_gradient_of_shared_values_is_the_same_every_time_and_that_of_the_cpu():
    sharing = Sharing(cut("layer", torch.empty(500, 400), "weight"), 2000, 7)
    gradient = torch.randn(500, 400)
    found = []
    for device in (DEVICE, DEVICE, DEVICE, "cpu"):
        values = torch.zeros(2000, device=device, requires_grad=True)
        sharing.expand(values).backward(gradient.to(device))
        found.append(values.grad.cpu())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], found[3])


@pytest.mark.parametrize(("num_positions", "num_values"), [(1, 1), (9, 3), (10_001, 37), (147_456, 14_000)])
def test_shared_values_are_spread_and_collected_to_the_bits_that_torch_gives(num_positions, num_values):
    key, device = random.signed(random.key(5, num_positions)), torch.device(DEVICE, 0)
    values = torch.randn(num_values, device=device)
    index = signed_index(key, num_positions, num_values, device)
    assert torch.equal(spreading.spread(values, num_positions, key), torch.cat([values, -values])[index])
    share = 2.0 ** (num_positions.bit_length() - 62)
    for scale in (1.0, 1e-30, 1e30, 0.0):
        pieces = scale * torch.randn(num_positions, device=device)
        both = add_up_in_any_order(pieces, index, 2 * num_values)
        found = spreading.collect(pieces, num_values, key, share)
        assert torch.equal(found, both[:num_values] - both[num_values:])
    for poison in (torch.nan, torch.inf):
        pieces = torch.ones(num_positions, device=device).index_fill_(0, torch.tensor([0], device=device), poison)
        assert not spreading.collect(pieces, num_values, key, share).isfinite().any()
