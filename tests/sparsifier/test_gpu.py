"""What only a GPU can show: captured graphs, no waiting for the device, the same topology as on a CPU."""

import copy
import warnings

import pytest
import torch
from torch import nn

import regrow
from regrow.storage.dense.storage import DenseStorage

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def small_network(memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10)
    )
    return network.to(DEVICE, memory_format=memory_format)


def a_batch():
    generator = torch.Generator(DEVICE).manual_seed(1)
    images = torch.randn(32, 3, 8, 8, device=DEVICE, generator=generator)
    return images, torch.randint(10, (32,), device=DEVICE, generator=generator)


def train(model, optimizer, num_steps):
    images, labels = a_batch()
    for _ in range(num_steps):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


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

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    eager_model, eager_optimizer, eager_sparse = copy.deepcopy((model, optimizer, sparse))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
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


@pytest.mark.parametrize(
    "method", [regrow.DSR(sparsity=0.9, l1=1e-4), regrow.DeepR(sparsity=0.9, temperature=1e-3)], ids=["DSR", "DeepR"]
)
def test_a_step_without_rewiring_never_waits_for_the_device_and_one_of_deepr_never_does(method):
    model = small_network(torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=DEVICE), momentum=0.9, fused=True)
    regrow.attach(model, optimizer, method)
    train(model, optimizer, 2)
    torch.cuda.synchronize()
    images, labels = a_batch()
    nn.functional.cross_entropy(model(images), labels).backward()
    with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


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
