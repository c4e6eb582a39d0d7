"""Growing among candidates in packed storage on a GPU, where a step may be captured."""

import copy
import gc
from functools import partial

import pytest
import torch
from test_gpu_packed import DEVICE, small_network, trained
from torch import nn

import regrow
from gpu_network import a_batch, captured, warm_up

pytestmark = pytest.mark.gpu
GSE = regrow.GSE(sparsity=0.8, period=3, until=100)


def test_packed_and_dense_storage_train_alike():
    (dense, sparse), (packed, other) = (trained(GSE, storage) for storage in ("dense", "packed"))
    for layer, mask in sparse.masks().items():
        assert torch.equal(mask, other.masks()[layer])
    other.detach()
    for (key, ours), theirs in zip(dense.state_dict().items(), packed.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9, msg=key)


def test_it_conforms_packed():
    regrow.testing.check_method(GSE, device=DEVICE, storage="packed")


def test_a_model_that_moved_to_the_gpu_grows_as_one_that_was_there():
    masks = []
    for where in ("cpu", DEVICE):
        model = small_network().double().to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = regrow.GSE(sparsity=0.8, period=1, until=100)
        sparse = regrow.attach(model, optimizer, method, storage="packed", seed=4)
        model.to(DEVICE)
        for _ in range(2):
            generator = torch.Generator(DEVICE).manual_seed(1)
            images = torch.randn(8, 3, 8, 8, device=DEVICE, generator=generator, dtype=torch.float64)
            model(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


@pytest.mark.parametrize("num_passes", [1, 2])
@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_a_captured_step_trains_like_an_eager_one(num_before, num_passes):
    """Captured where the next step rewires, and where it does not; in one or more backward passes."""
    model = small_network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    images, labels = a_batch()
    parts = list(zip(images.double().chunk(num_passes), labels.chunk(num_passes), strict=True))
    sparse = regrow.attach(model, optimizer, GSE, storage="packed")

    def step(model, optimizer):
        optimizer.zero_grad(set_to_none=False)
        for own, its_labels in parts:
            nn.functional.cross_entropy(model(own), its_labels).backward()
        optimizer.step()

    warm_up(partial(step, model, optimizer), num_before)
    eager_model, eager_optimizer, eager_sparse = copy.deepcopy((model, optimizer, sparse))
    graph = captured(partial(step, model, optimizer))
    assert sparse.num_steps == num_before, "capturing counts no step"
    for _ in range(14 - num_before):
        graph.replay()
        sparse.advance()
        step(eager_model, eager_optimizer)
    assert sparse.num_steps == eager_sparse.num_steps == 14
    assert [record.step for record in sparse.history] == [3, 6, 9, 12]
    assert sum(sparse.history[-1].grown.values()) > 0
    for layer, mask in sparse.masks().items():
        assert torch.equal(mask, eager_sparse.masks()[layer])
    for ours, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_a_captured_step_that_would_look_everywhere_is_refused():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    images, labels = a_batch()
    regrow.attach(model, optimizer, regrow.RigL(sparsity=0.8, period=3, until=100), storage="packed")

    def step():
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    warm_up(step, 1)
    with pytest.raises(ValueError, match=r"or grow by regrow\.GSE"):
        captured(step)


def test_all_that_stays_on_a_gpu_is_where_the_candidates_are():
    held = []
    for method in (regrow.SET(sparsity=0.9, period=2), regrow.GSE(sparsity=0.9, period=2, until=100)):
        layer = nn.Linear(4096, 4096, device=DEVICE)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        sparse = regrow.attach(layer, optimizer, method, storage="packed")
        for _ in range(4):
            layer(torch.randn(8, 4096, device=DEVICE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(sparse.history) == 2
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
        budget = sparse.budget
        del layer, optimizer, sparse
        gc.collect()
    assert held[1] - held[0] == pytest.approx(4 * budget, abs=1 << 20)
