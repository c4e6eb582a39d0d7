"""DeepR on a GPU: walking and rewiring without a word from the host."""

import pytest
import torch

import regrow
from gpu_network import DEVICE, small_network, step_without_waiting
from regrow.storage.dense.storage import DenseStorage

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("sparsity", "temperature"), [(0.9, 1e-6), (0.9, 1e-2), (0.5, 1e-2), (0.3, 10.0), (0.0, 1e-3)])
def test_deepr_alone_on_the_gpu_rewires_like_the_host(sparsity, temperature, memory_format, monkeypatch):
    """Small moves and large ones: layers that would lose nearly all, and that have hardly a place to regrow."""
    method = regrow.DeepR(sparsity=sparsity, temperature={0: temperature, 4: temperature / 9}, period=2, until=7)
    results = []
    for is_alone in (True, False):
        if not is_alone:
            monkeypatch.setattr(DenseStorage, "in_one_piece", lambda self: None)
        model = small_network(memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=DEVICE), momentum=0.9)
        sparse = regrow.attach(model, optimizer, method, seed=3)
        for step in range(9):
            for parameter in model.parameters():
                wave = torch.arange(parameter.numel(), dtype=torch.float32, device=DEVICE).add_(step).sin()
                parameter.grad = torch.empty_like(parameter).copy_(wave.view(parameter.shape))
            optimizer.step()
        results.append((sparse.masks(), dict(model.named_parameters()), sparse.history))
    (masks, weights, history), (same_masks, same_weights, same_history) = results
    assert history == same_history
    assert any(history[0].pruned.values()) or sparsity == 0
    for layer, mask in masks.items():
        assert torch.equal(mask, same_masks[layer])
        torch.testing.assert_close(weights[layer], same_weights[layer], rtol=1e-4, atol=1e-5)


def test_a_step_that_walks_and_rewires_never_waits_for_the_device():
    step_without_waiting(regrow.DeepR(sparsity=0.9, temperature=1e-3))
