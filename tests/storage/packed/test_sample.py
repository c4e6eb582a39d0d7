"""Growing among candidates in packed storage, which sees their gradients and no others."""

import copy

import pytest
import torch
from test_growth import Block, Reused
from test_packed import Run, assert_same
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import regrow
from regrow.methods import Method
from regrow.storage.packed import places, sample

GSE = regrow.GSE(sparsity=0.8, period=2, until=40)
EVERY_STEP = regrow.GSE(sparsity=0.6, period=1, until=100)


def pair(method=GSE, kernels="auto", **options):
    return Run(method, "dense", **options), Run(method, "packed", kernels=kernels, **options)


def step(run):
    run.optimizer.step()
    run.optimizer.zero_grad()


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("distribution", ["erk", "uniform"])
@pytest.mark.parametrize("sparsity", [0.3, 0.9])
def test_training_is_that_of_dense_storage_step_for_step(sparsity, distribution, kernels):
    method = regrow.GSE(sparsity=sparsity, period=2, until=40, distribution=distribution)
    dense, packed = pair(method, kernels=kernels)
    for _ in range(8):
        assert_same(dense.train(1), packed.train(1))
    assert sum(packed.sparse.history[-1].grown.values()) > 0


# Which backward passes count


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_gradients_of_several_backward_passes_are_added_up(kernels):
    runs = pair(kernels=kernels)
    for run in runs:
        for _ in range(4):
            for part in (slice(5), slice(5, 11), slice(11, None)):
                run.backward(part)
            step(run)
    assert_same(*runs)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_that_was_given_up_leaves_nothing(set_to_none):
    runs = pair(EVERY_STEP)
    for run in runs:
        for _ in range(3):
            (cross_entropy(run.model(run.images[:4]), run.labels[:4]) * torch.inf).backward()
            run.optimizer.zero_grad(set_to_none=set_to_none)  # as where a GradScaler skips a step
            for part in (slice(4, 9), slice(9, None)):
                run.backward(part)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=set_to_none)
    assert_same(*runs)


@pytest.mark.parametrize("fused", [True, False])
def test_steps_that_a_grad_scaler_skips_do_not_count(fused):
    runs = pair(EVERY_STEP, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=fused))
    for run in runs:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for poison in (False, True, False, True, True, False):
            loss = cross_entropy(run.model(run.images), run.labels)
            scaler.scale(loss * torch.inf if poison else loss).backward()
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
        assert run.sparse.num_steps == 3
    assert_same(*runs)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_a_pass_for_the_gradient_of_an_input_leaves_nothing(kernels):
    runs = pair(EVERY_STEP, kernels=kernels)
    for run in runs:
        for _ in range(3):
            images = run.images.clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(run.model(images), run.labels), images)
            cross_entropy(run.model(run.images + 100 * slope), run.labels).backward()
            step(run)
    assert_same(*runs)


class Segments(Reused):
    """One part of it is computed again in the backward pass, within which another one runs."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x):
        y = checkpoint(lambda z: self.often(z).tanh() @ self.once.weight, x, use_reentrant=self.use_reentrant)
        return self.once(self.often(y).tanh())


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("make", [Reused, Block, lambda: Segments(True), lambda: Segments(False)])
def test_all_uses_of_a_layer_count_however_it_is_computed(make, kernels):
    masks, x = [], torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    for storage in ("dense", regrow.Packed(kernels=kernels)):
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparse = regrow.attach(model, optimizer, EVERY_STEP, storage=storage)
        for _ in range(4):
            model(x).sin().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


def test_a_compiled_model_grows_what_it_does_uncompiled():
    runs = [Run(EVERY_STEP, kernels="sparse") for _ in range(2)]
    for run, forward in zip(runs, (runs[0].model, torch.compile(runs[1].model, backend="aot_eager")), strict=True):
        for _ in range(3):
            for part in (slice(6), slice(6, None)):
                cross_entropy(forward(run.images[part]), run.labels[part]).backward()
            step(run)
    assert_same(*runs)


def test_layers_that_took_no_part_grow_the_first_candidates():
    masks = []
    for storage in ("dense", "packed"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(20, 20), "idle": nn.Linear(20, 20)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sparse = regrow.attach(model, optimizer, EVERY_STEP, storage=storage)
        model["used"](torch.ones(3, 20)).square().sum().backward()
        if storage == "dense":
            model["idle"].weight.grad = torch.zeros(20, 20)
        optimizer.step()
        masks.append(sparse.masks())
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("num_passes", [1, 2])
def test_where_steps_are_captured_it_looks_every_time_and_always_in_the_same_memory(
    num_passes, set_to_none, monkeypatch
):
    """As on a GPU, but that every step is taken by Python."""
    for module in (places, sample):
        monkeypatch.setattr(module, "has_kernels", lambda device: False)
    monkeypatch.setattr(sample, "is_capturing", lambda: True)
    runs = pair(regrow.GSE(sparsity=0.8, period=3, until=40), kernels="dense")
    (pack,) = runs[1].sparse.storage.packs
    addresses = set()
    for _ in range(7):
        for run in runs:
            run.optimizer.zero_grad(set_to_none)
            for images, labels in zip(run.images.chunk(num_passes), run.labels.chunk(num_passes), strict=True):
                cross_entropy(run.model(images), labels).backward()
            run.optimizer.step()
        addresses.add((*(own.index.data_ptr() for own in pack.sample.places), pack.sample.seen.data_ptr()))
        assert_same(*runs)
    assert len(addresses) == 1


def test_a_network_without_free_places_keeps_all_its_weights():
    dense, packed = pair(regrow.GSE(sparsity=0.0, period=1, until=40))
    assert_same(dense.train(2), packed.train(2))
    assert packed.sparse.active == packed.sparse.budget


def test_every_parameter_group_has_its_candidates():
    def make(model):
        first, *others = model.parameters()
        return torch.optim.SGD([{"params": others}, {"params": [first], "lr": 0.2}], lr=0.1, momentum=0.9)

    runs = pair(optimizer=make)
    assert len(runs[1].sparse.storage.packs) == 2
    assert_same(*(run.train(6) for run in runs))


# What is looked at


class Watch(TorchDispatchMode):
    """The most numbers that any result of an operator has, and all kernels work in such memory."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.most = max([self.most, *(r.numel() for r in tree_leaves(results) if isinstance(r, torch.Tensor))])
        return results


@pytest.mark.parametrize("sparsity", [0.9, 0.99])
def test_no_tensor_is_ever_as_large_as_a_layer(sparsity):
    with torch.device("meta"):
        layers = nn.Conv2d(16, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        model = nn.Sequential(*layers, nn.BatchNorm1d(256), nn.Linear(256, 150))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = regrow.GSE(sparsity=sparsity, period=2, until=40, distribution="uniform")
    with Watch() as attaching:
        sparse = regrow.attach(model, optimizer, method, storage=regrow.Packed(kernels="sparse"))
    with Watch() as training:
        for _ in range(4):
            model(torch.randn(4, 16, 4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(sparse.history) == 2
    assert sum(sparse.history[-1].grown.values()) > 0
    sizes = [torch.Size(layer.shape).numel() for layer in sparse.layers]
    assert sizes == [36_864, 38_400]
    assert attaching.most < sum(sizes)
    assert training.most < min(sizes)


def test_nothing_is_looked_at_in_steps_that_do_not_rewire():
    run = Run(regrow.GSE(sparsity=0.8, period=3, until=40)).train(1)
    (pack,) = run.sparse.storage.packs
    is_looking = []
    for _ in range(6):
        is_looking.append(pack.sample.is_looking)
        run.train(1)
    assert is_looking == [False, True, False, False, True, False]
    assert pack.sample.places == []
    assert not any(search.wanted for search in pack.searches)


def test_a_copy_of_a_training_goes_its_way_with_candidates_of_its_own():
    run = Run(GSE).train(3)
    twin = copy.copy(run)
    twin.model, twin.optimizer, twin.sparse = copy.deepcopy((run.model, run.optimizer, run.sparse))
    run.backward()
    twin.train(3)
    step(run)
    assert_same(run.train(2), twin)


class LooksElsewhere(Method):
    """Anybody's method that looks at other places than it names."""

    needs = frozenset({"sampled_gradient"})

    def prune_counts(self, tally, step):
        return [1 for _ in tally.active]

    def candidates(self, tally, step, key):
        return GSE.candidates(tally, step, 1)

    def grow_units(self, evidence, counts, key):
        among = GSE.candidates(evidence.tally, evidence.step, 2)
        return evidence.largest_free(counts, lambda units: units.gradient.abs(), among)


class LooksEverywhere(LooksElsewhere):
    def grow_units(self, evidence, counts, key):
        return evidence.largest_free(counts, lambda units: units.gradient.abs())


@pytest.mark.parametrize("cls", [LooksElsewhere, LooksEverywhere])
def test_gradients_that_nobody_asked_for_are_refused_with_nothing_changed(cls):
    run = Run(cls(sparsity=0.8, period=1))
    masks = run.sparse.masks()
    run.backward()
    with pytest.raises(ValueError, match="what `candidates` gives, or use storage='dense'"):
        run.optimizer.step()
    assert all(torch.equal(mask, masks[name]) for name, mask in run.sparse.masks().items())


def test_candidates_whose_gradients_are_not_finite_are_refused_by_name():
    run = Run(EVERY_STEP)
    (cross_entropy(run.model(run.images), run.labels) * torch.inf).backward()
    for pack in run.sparse.storage.packs:
        pack.values.grad.zero_()
    with pytest.raises(ValueError, match=r"0\.weight has gradients that are not finite"):
        run.optimizer.step()
