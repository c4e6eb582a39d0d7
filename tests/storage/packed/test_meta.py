"""Packed storage begins without dense weights where a model is built on the meta device."""

import pytest
import torch
from test_packed import METHODS
from torch import nn

import regrow
from regrow.storage.packed.layers import packed_slots


def on_meta():
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 50))


def test_a_model_on_the_meta_device_becomes_real_without_its_dense_weights():
    model = on_meta()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=1), storage="packed")
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, model.parameters()))
    for name, fan_in in (("0", 27), ("4", 128)):
        drawn = torch.cat([packed_slots(model)[f"{name}.weight"].values().detach(), model[int(name)].bias.detach()])
        assert drawn.abs().max() <= fan_in**-0.5
        assert drawn.std() == pytest.approx((3 * fan_in) ** -0.5, rel=0.2)
    assert torch.equal(model[1].running_var, torch.ones(8))
    for _ in range(3):
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.active == sparse.budget == round(0.5 * (216 + 6400))


def test_the_topology_does_not_depend_on_where_weights_were():
    real = nn.Linear(40, 30)
    with torch.device("meta"):
        unreal = nn.Linear(40, 30)
    masks = [
        regrow.attach(m, torch.optim.SGD(m.parameters(), lr=0.1), METHODS["SET"], storage="packed").masks()["weight"]
        for m in (real, unreal)
    ]
    assert torch.equal(*masks)


def test_values_can_be_drawn_otherwise():
    asked = []

    def draw(name, shape, count, generator):
        asked.append((name, shape, count))
        return torch.full((count,), 0.25)

    model = on_meta()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    regrow.attach(model, optimizer, regrow.Static(sparsity=0.9), storage=regrow.Packed(init=draw))
    assert asked == [("0.weight", (8, 3, 3, 3), 22), ("4.weight", (50, 128), 640)]
    assert (model.packed_values == 0.25).all()


def test_what_cannot_begin_on_the_meta_device_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.shift = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

    with torch.device("meta"):
        odd = Odd()
    options = {"storage": "packed"}
    with pytest.raises(ValueError, match="no telling how its shift begins"):
        regrow.attach(odd, torch.optim.SGD(odd.parameters(), lr=0.1), METHODS["SET"], **options)
    model = on_meta()
    with pytest.raises(ValueError, match="have no magnitudes"):
        regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), METHODS["SET"], start="magnitude", **options)
    with pytest.raises(ValueError, match="storage='packed'"):
        regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), METHODS["SET"])
    with pytest.raises(ValueError, match="real weights"):
        regrow.attach(model, torch.optim.Adagrad(model.parameters(), lr=0.1), METHODS["SET"], **options)
    assert type(model[0]) is nn.Conv2d


def test_ten_thousand_million_positions_train_and_rewire():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000, bias=False), nn.ReLU(), nn.Linear(100_000, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = regrow.SET(sparsity=1 - 1e-6, period=1)
    sparse = regrow.attach(model, optimizer, method, storage="packed")
    assert sparse.budget == 10_000
    x = torch.zeros(2, 100_000)
    x[:, ::7] = 1
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(sparse.history) == 2
    slot = packed_slots(model)["0.weight"]
    stored = slot.places.stored()
    assert bool((stored.diff() > 0).all())
    assert int(slot.places.units().amax()) > 2**32
