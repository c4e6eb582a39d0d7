"""What only a GPU can show: captured graphs, no waiting for the device, the same topology as on a CPU."""

import copy
import warnings

import pytest
import torch
from torch import nn

import regrow
from gpu_network import DEVICE, a_batch, captured, small_network, step_without_waiting, warm_up

pytestmark = pytest.mark.gpu


def test_layers_of_several_dtypes_are_rewired_the_plain_way_and_alike():
    masks = []
    for device in ("cpu", DEVICE):
        model = small_network().to(device)
        model[2].to(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.8, threshold=0.05, period=1))
        sparse.advance()
        assert sum(sparse.history[0].pruned.values()) > 0
        masks.append([mask.cpu() for mask in sparse.masks().values()])
    assert all(map(torch.equal, *masks))


@pytest.mark.parametrize("name", ["DSR", "SET"])
def test_weights_that_are_not_finite_are_refused_by_name(name):
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparse = regrow.attach(model, optimizer, regrow.METHODS[name](sparsity=0.8, period=1))
    with torch.no_grad():
        model[2].weight[sparse.masks()["2.weight"]] = torch.nan
    with pytest.raises(ValueError, match=r"2\.weight has weights that are not finite"):
        sparse.advance()


def test_a_rewiring_by_threshold_waits_for_the_device_once():
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, threshold=0.005, period=1))
    sparse.advance()
    with warnings.catch_warnings(record=True, action="always") as caught:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            sparse.advance()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert sum(sparse.history[1].pruned.values()) > 0
    assert len([one for one in caught if "called a synchronizing" in str(one.message)]) == 1


@pytest.mark.parametrize("name", ["Static", "DSR", "SET", "RigL", "SNFS"])
def test_gpu_and_cpu_start_from_the_same_topology_and_grow_the_same_random_places(name):
    masks = {}
    for device in ("cpu", DEVICE):
        model = small_network().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sparse = regrow.attach(model, optimizer, regrow.METHODS[name](sparsity=0.9, period=1), seed=5)
        for parameter in model.parameters():
            parameter.grad = torch.arange(parameter.numel(), dtype=torch.float32).sin().view_as(parameter).to(device)
        for _ in range(3):
            sparse.mask_gradients()
            optimizer.step()
        masks[device] = {layer: mask.cpu() for layer, mask in sparse.masks().items()}
    assert all(torch.equal(mask, masks[DEVICE][layer]) for layer, mask in masks["cpu"].items())


@pytest.mark.parametrize("name", list(regrow.METHODS))
def test_a_captured_step_trains_like_an_eager_one(name):
    cls = regrow.METHODS[name]
    method = cls(sparsity=0.8) if cls.rewires_every_step else cls(sparsity=0.8, period=3, until=100)
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    images, labels = a_batch()
    sparse = regrow.attach(model, optimizer, method)

    def step():
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    warm_up(step, 2)
    eager_model, eager_optimizer, eager_sparse = copy.deepcopy((model, optimizer, sparse))
    graph = captured(step)
    assert sparse.num_steps == 2, "capturing counts no step"
    for _ in range(13):
        graph.replay()
        sparse.advance()
        nn.functional.cross_entropy(eager_model(images), labels).backward()
        eager_optimizer.step()
        eager_optimizer.zero_grad()
    assert sparse.num_steps == eager_sparse.num_steps == 15
    for layer, mask in sparse.masks().items():
        assert torch.equal(mask, eager_sparse.masks()[layer])
    for ours, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_step_without_rewiring_never_waits_for_the_device():
    step_without_waiting(regrow.DSR(sparsity=0.9, l1=1e-4))


@pytest.mark.parametrize("fused", [True, False])
def test_steps_that_a_grad_scaler_skips_do_not_count(fused):
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    sparse = regrow.attach(model, optimizer, regrow.SNFS(sparsity=0.8, period=2))
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    images, labels = a_batch()
    for poison in (False, True, False, True, False):
        with torch.autocast(DEVICE, torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss * torch.inf if poison else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert sparse.num_steps == 3
    assert [record.step for record in sparse.history] == [2]
    assert sparse.active == sparse.budget == sum(int(mask.sum()) for mask in sparse.masks().values())


@pytest.mark.parametrize("name", list(regrow.METHODS))
def test_every_method_conforms_on_the_gpu(name):
    regrow.testing.check_method(regrow.METHODS[name](sparsity=0.8), device=DEVICE)


def test_gpu_and_cpu_share_values_alike():
    weights = []
    for device in ("cpu", DEVICE):
        model = small_network().to(device)
        regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Hashed(sparsity=0.9), seed=5)
        weights.append([module.weight.cpu() for module in model.modules() if isinstance(module, nn.Conv2d)])
    assert all(map(torch.equal, *weights))
