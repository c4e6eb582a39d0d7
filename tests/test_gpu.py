"""What only a GPU can show: the masking kernel, captured graphs, no waiting for the device, the same topology."""

import copy
import warnings

import pytest
import torch
from torch import nn

import regrow
from regrow.kernels.zeroing import Masks

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


def check_zeroing(tensors, masks):
    expected = [[tensor.masked_fill(~mask, 0) for tensor in own] for own, mask in zip(tensors, masks, strict=True)]
    Masks(masks, masks[0].device).zero_inactive(tensors)
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
def test_a_layer_without_a_gradient_takes_the_slow_way(missing):
    masks = [torch.rand(17, 9, device=DEVICE) < 0.3 for _ in range(3)]
    tensors = [[] if i == missing else [torch.randn(17, 9, device=DEVICE)] for i in range(3)]
    check_zeroing(tensors, masks)


def test_strides_that_differ_from_the_mask_take_the_slow_way_and_are_right():
    tensor = torch.randn(8, 16, device=DEVICE).t()
    mask = torch.rand(16, 8, device=DEVICE) < 0.5
    check_zeroing([[tensor]], [mask])


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
    method = cls(sparsity=0.8) if cls.walks else cls(sparsity=0.8, period=3, until=100)
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
    assert sparse.step == 2, "capturing counts no step"
    for _ in range(13):
        graph.replay()
        sparse.advance()
        nn.functional.cross_entropy(eager_model(images), labels).backward()
        eager_optimizer.step()
        eager_optimizer.zero_grad()
    assert sparse.step == eager_sparse.step == 15
    for layer, mask in sparse.masks().items():
        assert torch.equal(mask, eager_sparse.masks()[layer])
    for ours, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_step_without_rewiring_never_waits_for_the_device():
    model = small_network(torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, l1=1e-4))
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
    assert sparse.step == 3
    assert [record.step for record in sparse.history] == [2]
    assert sparse.active == sparse.budget == sum(int(mask.sum()) for mask in sparse.masks().values())


@pytest.mark.parametrize("name", list(regrow.METHODS))
def test_every_method_conforms_on_the_gpu(name):
    regrow.testing.check_method(regrow.METHODS[name](sparsity=0.8), device=DEVICE)
