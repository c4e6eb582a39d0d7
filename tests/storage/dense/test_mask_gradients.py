"""The gradient of what is inactive becomes 0, whatever it was; that of what is active stays as it is, bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regrow


def attached(layer: nn.Module, mask: torch.Tensor) -> regrow.Sparsifier:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    return regrow.attach(layer, optimizer, regrow.Static(sparsity=0.5), layers=["weight"], start={"weight": mask})


def test_what_is_no_number_is_gone_and_signs_stay():
    layer = nn.Linear(6, 1, bias=False)
    sparse = attached(layer, torch.tensor([[True, False, False, True, False, True]]))
    layer.weight.grad = torch.tensor([[float("nan"), float("nan"), float("inf"), -0.0, -3.0, -2.0]])
    sparse.mask_gradients()
    assert layer.weight.grad[0, 0].isnan()
    assert layer.weight.grad[0, 1:].tolist() == [0, 0, 0, 0, -2]
    assert layer.weight.grad[0, 1:].signbit().tolist() == [False, False, True, False, True]


@given(
    st.sampled_from((torch.float64, torch.float32, torch.bfloat16, torch.float16)),
    st.integers(1, 40),
    st.integers(2, 40),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_it_is_choosing_by_the_mask(dtype, rows, columns, is_turned, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(rows * columns, dtype=torch.bool)
    mask[torch.randperm(rows * columns, generator=generator)[: round(rows * columns / 2)]] = True
    layer, mask = nn.Linear(columns, rows, bias=False, dtype=dtype), mask.view(rows, columns)
    any_bits = torch.randint(0, 256, (rows, columns * dtype.itemsize), generator=generator, dtype=torch.uint8)
    gradient = any_bits.view(dtype)
    layer.weight.grad = gradient.t().contiguous().t() if is_turned else gradient.clone()
    attached(layer, mask).mask_gradients()
    expected = torch.where(mask, gradient, torch.zeros((), dtype=dtype))
    assert torch.equal(layer.weight.grad.contiguous().view(torch.uint8), expected.view(torch.uint8))


def test_a_gradient_that_is_differentiated_again_is_masked_too():
    layer = nn.Linear(4, 1, bias=False)
    sparse = attached(layer, torch.tensor([[True, False, True, False]]))
    with pytest.warns(UserWarning, match="create_graph"):
        (layer.weight**3).sum().backward(create_graph=True)
    assert layer.weight.grad.requires_grad
    sparse.mask_gradients()
    assert layer.weight.grad[0].count_nonzero() == 2
    layer.weight.grad = None


@pytest.mark.parametrize("shape", [(700, 900), (1, 300_000), (300_000, 1), (2, 3, 400, 400)])
def test_large_layers_are_masked_in_pieces(shape):
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(shape))
    mask = torch.arange(layer.weight.numel()).view(shape) % 2 == 0
    sparse = attached(layer, mask)
    gradient = torch.randn(shape)
    layer.weight.grad = gradient.clone()
    sparse.mask_gradients()
    assert torch.equal(layer.weight.grad, gradient * mask)
