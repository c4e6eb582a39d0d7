"""Packed storage on a GPU: the same networks as with dense storage, in a fraction of the memory."""

from math import prod

import pytest
import torch
from torch import nn

import regrow
from every_method import EVERY_STEP, can_be_packed, make
from regrow.lab.models import build, sparse_layers
from regrow.size import training_bytes

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
METHODS = {
    "Static": regrow.Static(sparsity=0.9),
    "DSR": regrow.DSR(sparsity=0.9, prune=0.2, period=2),
    "SET": regrow.SET(sparsity=0.9, fraction=0.3, period=2),
    "RigL": regrow.RigL(sparsity=0.9, period=2),
    **{name: make(regrow.METHODS[name], sparsity=0.9, temperature=1e-5) for name in EVERY_STEP},
}
METHODS = {name: method for name, method in METHODS.items() if can_be_packed(method)}


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 9, 10),
    ).to(DEVICE)  # fmt: skip


def trained(method, storage, num_steps=10):
    model = small_network().double()  # so that rounding decides nothing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    sparse = regrow.attach(model, optimizer, method, storage=storage, seed=2)
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(32, 3, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)
    images, labels = images.double().to(DEVICE), labels.to(DEVICE)
    for _ in range(num_steps):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, sparse


@pytest.mark.parametrize("name", list(METHODS))
def test_packed_and_dense_storage_train_alike(name):
    (dense, sparse), (packed, other) = (trained(METHODS[name], storage) for storage in ("dense", "packed"))
    for layer, mask in sparse.masks().items():
        assert torch.equal(mask, other.masks()[layer])
    other.detach()
    for (key, ours), theirs in zip(dense.state_dict().items(), packed.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_conforms_packed_on_the_gpu(name):
    regrow.testing.check_method(METHODS[name], device=DEVICE, storage="packed")


@pytest.mark.parametrize(("sparsity", "most"), [(0.9, 1.8), (0.99, 0.25)])
@pytest.mark.parametrize("name", ["wrn_28_2", "resnet_50"])
def test_what_persists_is_of_the_size_of_the_budget(name, sparsity, most):
    model = build(name).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = regrow.DSR(sparsity=sparsity)
    sparse = regrow.attach(model, optimizer, method, layers=sparse_layers(model), storage="packed")
    num_positions = sum(prod(layer.shape) for layer in sparse.layers)
    model(torch.randn(2, 3, 64, 64, device=DEVICE)).sum().backward()
    optimizer.step()
    assert training_bytes(sparse) <= most * num_positions


def test_a_packed_step_works_under_autocast():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = regrow.attach(model, optimizer, METHODS["RigL"], storage="packed")
    for _ in range(4):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(torch.randn(8, 3, 8, 8, device=DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.active == sparse.budget
    assert len(sparse.history) == 2


def test_a_model_on_the_meta_device_becomes_real_where_new_tensors_are_made():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        torch.set_default_device(DEVICE)
        sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.9, period=2), storage="packed")
    finally:
        torch.set_default_device(None)
    for _ in range(3):
        model(torch.randn(8, 64, device=DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(parameter.is_cuda for parameter in model.parameters())
    assert sparse.active == sparse.budget
