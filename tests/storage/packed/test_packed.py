"""Packed storage: the same training as with dense storage, in a vector of exactly the budget."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow
from every_method import EVERY_STEP, can_be_packed, in_every_way
from regrow.storage.packed.layers import packed_slots


def in_place_and_across(name):
    """A method that rewires in every step, in every way that it can work, so that it does."""
    in_place = in_every_way(regrow.METHODS[name], sparsity=0.9, temperature=1e-5, l1=1e-3)
    across = in_every_way(regrow.METHODS[name], sparsity=0.5, temperature=1e-4)
    chosen = {f"{name} in place": method for method in in_place if method.regrows_in_place}
    chosen |= {f"{name} across layers": method for method in across if not method.regrows_in_place}
    return {key: method for key, method in chosen.items() if can_be_packed(method)}


METHODS = {
    "Static": regrow.Static(sparsity=0.9),
    "Dense": regrow.Dense(),
    "DSR": regrow.DSR(sparsity=0.8, prune=0.2, period=2, threshold=0.02, l1=1e-3),
    "DSR, nearly full": regrow.DSR(sparsity=0.05, prune=0.5, period=2, threshold=10.0),
    "SET": regrow.SET(sparsity=0.9, period=2),
    "SET, much": regrow.SET(sparsity=0.5, period=1, fraction=0.9),
    "RigL": regrow.RigL(sparsity=0.9, period=2, until=40),
    **{key: method for name in EVERY_STEP for key, method in in_place_and_across(name).items()},
}
IN_PLACE = [name for name, method in METHODS.items() if method.regrows_in_place]
ACROSS = [name for name, method in METHODS.items() if not method.regrows_in_place]
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}


class Run:
    """A small classifier of images in training, in double precision, so that rounding decides nothing."""

    def __init__(
        self,
        method,
        storage="packed",
        optimizer=lambda model: torch.optim.SGD(model.parameters(), **SGD),
        kernels="auto",
        init=None,
        **options,
    ):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 5),
        ).double()  # fmt: skip
        self.images, self.labels = torch.randn(16, 3, 6, 6).double(), torch.randint(5, (16,))
        self.optimizer = optimizer(self.model)
        storage = regrow.Packed(kernels=kernels, init=init) if storage == "packed" else storage
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage, **options)

    def backward(self, part=slice(None)):
        loss = cross_entropy(self.model(self.images[part]), self.labels[part])
        loss.backward()
        return loss

    def train(self, num_steps):
        for _ in range(num_steps):
            self.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def tensors(self):
        """Weights and state of each sparse layer, dense."""
        return self.sparse.storage.dense_tensors(self.optimizer)


def assert_same(one, other):
    masks = other.sparse.masks()
    assert all(torch.equal(mask, masks[name]) for name, mask in one.sparse.masks().items())
    assert one.sparse.layers == other.sparse.layers
    assert one.sparse.history == other.sparse.history
    theirs = other.tensors()
    for name, tensors in one.tensors().items():
        for ours, their in zip(tensors, theirs[name], strict=True):
            torch.testing.assert_close(ours, their)
    assert torch.allclose(one.model(one.images), other.model(other.images))


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("name", METHODS)
def test_training_is_that_of_dense_storage_step_for_step(name, kernels):
    dense, packed = Run(METHODS[name], "dense"), Run(METHODS[name], kernels=kernels)
    assert_same(dense, packed)
    for _ in range(12):
        assert_same(dense.train(1), packed.train(1))
    assert bool(packed.sparse.history) == METHODS[name].rewires


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_whatever_the_optimizer_remembers_moves_along(optimizer):
    def make(model):
        return optimizer(model.parameters(), lr=0.01, weight_decay=1e-2)

    dense, packed = (Run(METHODS["DSR"], storage, make) for storage in ("dense", "packed"))
    assert_same(dense.train(7), packed.train(7))


def test_weights_in_channels_last_draw_as_they_do_in_dense_storage():
    runs = []
    for storage in ("dense", "packed"):
        torch.manual_seed(0)
        model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=1), storage=storage)
        for _ in range(3):
            model(torch.ones(2, 4, 5, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        runs.append(sparse)
    assert torch.equal(runs[0].masks()["weight"], runs[1].masks()["weight"])


def test_one_parameter_of_exactly_the_budget_takes_the_place_of_all():
    run = Run(METHODS["DSR"])
    names = [name for name, _ in run.model.named_parameters()]
    assert names == ["packed_values", "0.bias", "1.weight", "1.bias", "3.bias", "6.bias", "8.bias"]
    assert run.model.packed_values.shape == (run.sparse.budget,)
    assert list(map(id, run.optimizer.param_groups[0]["params"])) == list(map(id, run.model.parameters()))
    values = run.model.packed_values
    address = values.data_ptr()
    run.train(5)
    (buffer,) = [v for v in run.optimizer.state[values].values() if isinstance(v, torch.Tensor)]
    assert buffer.shape == values.shape
    assert run.model.packed_values is values
    assert values.data_ptr() == address
    assert [layer.name for layer in run.sparse.layers] == ["0.weight", "3.weight", "6.weight", "8.weight"]


@pytest.mark.parametrize(("sparsity", "most"), [(0.9, 1.8), (0.99, 0.25)])
def test_what_stays_in_memory_is_the_budget(sparsity, most):
    layer = nn.Linear(1000, 800)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(layer, optimizer, regrow.SET(sparsity=sparsity, period=2), storage="packed")
    for _ in range(3):
        layer(torch.randn(4, 1000)).sum().backward()
        optimizer.step()
    values = layer.packed_values
    state = optimizer.state[values]["momentum_buffer"]
    (slot,) = packed_slots(layer).values()
    assert values.nbytes == values.grad.nbytes == state.nbytes == 4 * sparse.budget
    starts = 4 * (1001 + 801)
    assert slot.places.num_bytes == 2 * 2 * sparse.budget + starts
    held = values.nbytes + values.grad.nbytes + state.nbytes + slot.places.num_bytes
    assert held / layer.in_features / layer.out_features <= most


def two_groups(model):
    early = [p for name, p in model.named_parameters() if name[0] in "06"]
    ids = set(map(id, early))
    late = [p for p in model.parameters() if id(p) not in ids]
    return torch.optim.SGD([{"params": early}, {"params": late, "lr": 0.05}], lr=0.1)


@pytest.mark.parametrize("name", IN_PLACE)
def test_several_parameter_groups_change_nothing_where_weights_stay_in_their_layer(name):
    dense, packed = (Run(METHODS[name], storage, two_groups) for storage in ("dense", "packed"))
    assert [len(values) for values in packed.sparse.storage.parameters] == [
        sum(layer.active for layer in packed.sparse.layers if layer.name[0] in names) for names in ("06", "38")
    ]
    assert any(p is packed.model.packed_values_1 for p in packed.optimizer.param_groups[1]["params"])
    assert_same(dense.train(6), packed.train(6))


@pytest.mark.parametrize("name", ACROSS)
def test_where_weights_move_each_group_keeps_its_budget(name):
    run = Run(METHODS[name], optimizer=two_groups)

    def held():
        return [sum(layer.active for layer in run.sparse.layers if layer.name[0] in names) for names in ("06", "38")]

    before, first = held(), run.sparse.layers
    run.train(10)
    assert held() == before
    assert run.sparse.active == run.sparse.budget
    assert run.sparse.layers != first, "weights moved within a group"


def test_a_nan_gradient_or_weight_stops_a_rewiring_with_nothing_changed():
    for spoil in ("values", "gradient"):
        run = Run(regrow.RigL(sparsity=0.9, period=1))
        before = copy.deepcopy(run.sparse.state_dict())
        if spoil == "values":
            run.backward()
            with torch.no_grad():
                run.model.packed_values[-1] = math.nan
        else:
            cross_entropy(run.model(run.images), run.labels).mul(math.nan).backward()
            run.model.packed_values.grad.zero_()
        with pytest.raises(ValueError, match="not finite"):
            run.optimizer.step()
        after = run.sparse.state_dict()
        assert after["step"] == 0
        assert torch.equal(after["positions"], before["positions"])


REFUSED = {
    "Gradual": (
        regrow.Gradual(sparsity=0.9),
        {},
        r"room for a number .* which packed storage does not offer; use",
    ),
    "SNFS": (
        regrow.SNFS(sparsity=0.9),
        {},
        r"a running mean .* which packed storage does not offer; use",
    ),
    "Hashed": (regrow.Hashed(sparsity=0.9), {}, "brings its own storage"),
    "kernels": (regrow.SET(sparsity=0.9, granularity="kernel"), {}, "granularity='weight'"),
    "a kind of kernels": (regrow.SET(sparsity=0.9), {"kernels": "fast"}, "kernels must be one of"),
    "init without meta": (regrow.SET(sparsity=0.9), {"init": torch.zeros}, "init is for layers on the meta device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_packed_is_refused(name):
    method, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Run(method, **options)


def attach_packed(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return regrow.attach(model, optimizer, regrow.SET(sparsity=0.5), storage="packed", **options)


def test_layers_of_one_group_must_be_alike():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).double())
    with pytest.raises(ValueError, match="differ in device or dtype"):
        attach_packed(model)
    groups = [{"params": part.parameters()} for part in model]
    attach_packed(model, torch.optim.SGD(groups, lr=0.1))
    assert model.packed_values_1.dtype == torch.float64


def test_a_packed_model_is_not_packed_twice():
    model = nn.Linear(8, 8)
    attach_packed(model)
    with pytest.raises(ValueError, match="packed already"):
        attach_packed(model)


def test_an_optimizer_that_has_trained_is_refused():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="attach right after building the optimizer"):
        attach_packed(model, optimizer)
    assert type(model) is nn.Linear


def test_a_name_that_is_taken_is_not_taken_again():
    model = nn.Linear(8, 8)
    model.packed_values = "mine"
    attach_packed(model)
    assert model.packed_values == "mine"
    assert model._packed_values.shape == (32,)


def test_start_by_magnitude_and_from_masks():
    model = nn.Linear(10, 10)
    weight = model.weight.detach().clone()
    sparse = attach_packed(model, start="magnitude")
    mask = weight.abs() >= weight.abs().flatten().topk(50).values.min()
    assert torch.equal(sparse.masks()["weight"], mask)
    assert torch.equal(model.weight, weight * mask)
    other = nn.Linear(10, 10)
    given = attach_packed(other, start={"weight": torch.eye(10).bool()})
    assert given.budget == 10
    assert torch.equal(given.masks()["weight"], torch.eye(10).bool())
