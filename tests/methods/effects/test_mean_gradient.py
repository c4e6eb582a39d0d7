"""The running mean of the dense gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from regrow import SNFS


def means(momentum: float, gradients: list[float]) -> torch.Tensor:
    """The mean after some steps with the same gradient at all eight places of a layer."""
    layer = torch.nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    sparse = regrow.attach(layer, optimizer, SNFS(sparsity=0.5, momentum=momentum, l1=3.0, period=1000))
    for gradient in gradients:
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
    (mean,) = sparse.storage.beside("mean_gradient")
    return mean


def test_the_mean_is_of_all_places_active_or_not_and_without_l1():
    assert torch.equal(means(0.75, [4.0]), torch.ones(2, 4))  # a quarter of 4


def test_what_is_older_counts_less():
    # 0.75 (0.75 * 1) + 0.25 * 8 after gradients of 4, 0 and 8
    assert torch.equal(means(0.75, [4.0, 0.0, 8.0]), torch.full((2, 4), 0.75 * 0.75 + 2))


def test_without_momentum_it_is_the_last_gradient():
    assert torch.equal(means(0.0, [4.0, 7.0]), torch.full((2, 4), 7.0))


@given(st.floats(0, 1), st.floats(-100, 100), st.integers(1, 8))
@settings(deadline=None, max_examples=15)
def test_the_mean_of_the_same_again_and_again_comes_near_it(momentum, gradient, num_steps):
    near = gradient * (1 - momentum**num_steps)
    torch.testing.assert_close(means(momentum, [gradient] * num_steps), torch.full((2, 4), near), atol=1e-4, rtol=1e-4)
