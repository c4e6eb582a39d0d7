"""Growing by gradient in packed storage, where the gradients of free places are seen in passing only."""

import pytest
import torch
from test_packed import Run
from torch import nn
from torch.utils.checkpoint import checkpoint

import regrow
from regrow.storage.packed import linear_norm


def test_rigl_on_packed_storage_goes_by_the_last_backward_pass():
    method = regrow.RigL(sparsity=0.9, period=1)
    once, twice = Run(method), Run(method)
    once.backward(slice(8, None))
    for part in (slice(8), slice(8, None)):
        twice.backward(part)
    for run in (once, twice):
        run.optimizer.param_groups[0]["lr"] = 0.0
        run.optimizer.step()
    masks = twice.sparse.masks()
    assert all(torch.equal(mask, masks[name]) for name, mask in once.sparse.masks().items())


def test_rigl_grows_the_first_places_of_a_layer_that_took_no_part():
    masks = []
    for storage in ("dense", "packed"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(20, 20), "idle": nn.Linear(20, 20)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sparse = regrow.attach(model, optimizer, regrow.RigL(sparsity=0.9, period=1), storage=storage)
        model["used"](torch.ones(3, 20)).square().sum().backward()
        if storage == "dense":
            model["idle"].weight.grad = torch.zeros(20, 20)
        optimizer.step()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


class Reused(nn.Module):
    """Two layers, one of which is used three times, once by reading its weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.often, self.once = nn.Linear(12, 12).double(), nn.Linear(12, 12).double()

    def forward(self, x):
        y = self.often(x).tanh() @ self.often.weight
        return self.once(self.often(y).tanh())


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("is_checkpointed", [None, True, False])
def test_rigl_adds_up_the_gradients_of_all_uses_of_a_layer(kernels, is_checkpointed):
    masks, x = [], torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).double()
    for storage in ("dense", regrow.Packed(kernels=kernels)):
        model = Reused()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = regrow.RigL(sparsity=0.5, period=1)
        sparse = regrow.attach(model, optimizer, method, storage=storage)
        for _ in range(4):
            with torch.no_grad():
                model(x)
            if is_checkpointed is None:
                loss = model(x).sin().sum()
            else:
                loss = checkpoint(model, x.requires_grad_(), use_reentrant=is_checkpointed).sin().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


class Block(nn.Module):
    """A layer and its norm that are computed as one."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(12, 12).double(), nn.BatchNorm1d(12).double()

    def forward(self, x):
        return linear_norm(self.linear, self.norm, x)


@pytest.mark.parametrize("make", [Reused, Block])
def test_no_dense_gradient_outlives_a_backward_pass_that_goes_through_all_uses(make):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = regrow.RigL(sparsity=0.5, period=1)
    sparse = regrow.attach(model, optimizer, method, storage=regrow.Packed(kernels="sparse"))
    model(torch.randn(3, 12).double()).sin().sum().backward()
    (pack,) = sparse.storage.packs
    assert all(search._part is None for search in pack.searches)
    assert all(search._found is not None for search in pack.searches)


def test_a_first_use_without_a_gradient_leaves_the_others():
    masks, x = [], torch.linspace(-1, 1, 60).view(5, 12).double()
    for storage in ("dense", "packed"):
        model = Reused()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparse = regrow.attach(model, optimizer, regrow.RigL(sparsity=0.5, period=1), storage=storage)
        model(x)  # a forward pass that nobody goes back through
        model(x).sin().sum().backward()
        optimizer.step()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())
