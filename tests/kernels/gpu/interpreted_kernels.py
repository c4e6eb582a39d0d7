"""GPU kernels run by Triton's interpreter, which needs no GPU: their arithmetic, not how they are compiled.

Triton decides when it is imported whether it interprets, so that this file is run in a process of its own.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from regrow.core import random
from regrow.core.row import cut_into_chunks
from regrow.core.selections import k_smallest_each
from regrow.core.units import cut
from regrow.kernels.gpu import compare as comparing
from regrow.kernels.gpu import spread as spreading
from regrow.lab.run.convolution import CHANNELS_IN, by_our_kernels, weight_gradient
from regrow.storage.hashed.sharing import _share, add_up_in_any_order, signed_index


@pytest.fixture(autouse=True)
def _loops_up_to_loaded_numbers(monkeypatch: pytest.MonkeyPatch):
    """Triton 3.6 asks NumPy to take an array of one number for that number, which it does not do any more."""
    as_it_is = interpreter._patch_lang_tensor

    def patch(tensor: type, scope: Any) -> None:
        as_it_is(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def pictures(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("num_in", CHANNELS_IN)
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 5)])
def test_weight_gradients_are_those_of_torch(num_in: int, size: int, stride: int, height: int, width: int):
    torch.manual_seed(0)
    images, slopes = pictures(3, num_in, height, width), pictures(3, 16, -(-height // stride), -(-width // stride))
    found, expected = by_our_kernels(slopes, images, size, stride), weight_gradient(slopes, images, size, stride)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weight_gradients_do_not_depend_on_what_lies_around():
    """Memory beside the images is never read: neither before the first pixel nor behind the last."""
    images, slopes = pictures(1, 16, 3, 3), pictures(1, 16, 3, 3)
    around = torch.full((3 * images.numel(),), torch.nan)
    inside = around[images.numel() : 2 * images.numel()]
    inside.copy_(images.permute(0, 2, 3, 1).flatten())
    framed = inside.view(1, 3, 3, 16).permute(0, 3, 1, 2)
    assert torch.equal(by_our_kernels(slopes, framed, 3, 1), by_our_kernels(slopes, images, 3, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [2, 2**20])
def test_the_smallest_units_of_each_layer_are_those_that_a_stable_sort_finds(dtype: torch.dtype, levels: int):
    torch.manual_seed(0)
    pieces = [((torch.randn(size) * levels).round() / levels).to(dtype) for size in (1, 9000, 40, 300)]
    layers = [cut(f"layer{i}", piece, "weight") for i, piece in enumerate(pieces)]
    (chunk,) = cut_into_chunks(layers, [torch.device("cpu")] * 4)
    active = torch.rand(chunk.num_units) < 0.6
    active[0] = True
    counts = [int(flags.sum()) for flags in chunk.split(active)]
    positions = active.nonzero().flatten()
    magnitude = torch.cat(pieces).float().abs()[positions]
    for share in (0, 0.1, 1):
        wanted = [round(share * count) for count in counts]
        found = comparing.smallest(chunk, pieces, active, wanted)
        assert found is not None
        assert torch.equal(found, positions[k_smallest_each(magnitude, counts, wanted)])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_there_are_no_smallest_units_where_a_value_is_not_finite(poison: float):
    piece = torch.ones(100)
    (chunk,) = cut_into_chunks([cut("layer", piece, "weight")], [piece.device])
    active = torch.ones(100, dtype=torch.bool)
    assert comparing.smallest(chunk, [piece], active, [3]) is not None
    piece[7] = poison
    assert comparing.smallest(chunk, [piece], active, [3]) is None


@pytest.mark.parametrize(("num_positions", "num_values"), [(1, 1), (9, 3), (10_001, 37)])
def test_shared_values_are_spread_and_collected_to_the_bits_that_torch_gives(num_positions: int, num_values: int):
    torch.manual_seed(0)
    key, values = random.signed(random.key(5, num_positions)), torch.randn(num_values)
    index = signed_index(key, num_positions, num_values, torch.device("cpu"))
    assert torch.equal(spreading.spread(values, num_positions, key), torch.cat([values, -values])[index])
    for scale in (1.0, 1e-30, 1e30, 0.0):
        pieces = scale * torch.randn(num_positions)
        both = add_up_in_any_order(pieces, index, 2 * num_values)
        found = spreading.collect(pieces, num_values, key, _share(num_positions))
        assert torch.equal(found, both[:num_values] - both[num_values:])


def test_a_gradient_that_is_one_number_everywhere_is_collected():
    """As that of a plain sum is: torch stores it once."""
    one = torch.ones(1).expand(100)
    found = spreading.collect(one, 7, 5, _share(100))
    assert torch.equal(found, spreading.collect(torch.ones(100), 7, 5, _share(100)))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # which is what it is about
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_no_sum_is_finite_where_a_piece_is_not(poison: float):
    pieces = torch.ones(100)
    pieces[3] = poison
    assert not spreading.collect(pieces, 7, 5, _share(100)).isfinite().any()
