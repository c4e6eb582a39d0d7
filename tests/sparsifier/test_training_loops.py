"""Anybody's training loop: schedulers, closures, accumulation, clipping, scaling, groups, memory formats, compile."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow
from loops import DSR, EXACT, RIGL, Loop
from regrow.testing import check_invariants


@pytest.mark.parametrize("method", [DSR, RIGL])
def test_a_closure_trains_the_same(method):
    plain, closing = Loop(method).train(6), Loop(method)
    for _ in range(6):

        def closure():
            closing.optimizer.zero_grad()
            return closing.backward()

        closing.optimizer.step(closure)
        check_invariants(closing.model, closing.optimizer, closing.sparse)
    assert closing.same_as(plain, **EXACT)


@pytest.mark.parametrize("method", [DSR, RIGL])
def test_masking_early_for_clipping_changes_nothing_else(method):
    """A generous clip is no clip; calling mask_gradients any number of times is calling it once."""
    plain, clipping = Loop(method).train(6), Loop(method)
    for _ in range(6):
        clipping.backward()
        clipping.sparse.mask_gradients()
        clipping.sparse.mask_gradients()
        nn.utils.clip_grad_norm_(clipping.model.parameters(), 1e9)
        clipping.optimizer.step()
        clipping.optimizer.zero_grad()
    assert clipping.same_as(plain)


def test_clipping_sees_only_active_gradients_after_masking():
    loop = Loop(regrow.Static(sparsity=0.8))
    loop.backward()
    loop.sparse.mask_gradients()
    for name, mask in loop.sparse.masks().items():
        assert (dict(loop.model.named_parameters())[name].grad[~mask] == 0).all()


@pytest.mark.parametrize("method", [DSR, RIGL, regrow.SNFS(sparsity=0.8, period=2)])
def test_gradient_accumulation_rewires_by_the_whole_gradient(method):
    whole, parts = Loop(method), Loop(method)
    for _ in range(4):
        whole.backward()
        for part in (slice(0, 6), slice(6, 12)):
            (cross_entropy(parts.model(parts.images[part]), parts.labels[part]) / 2).backward()
        for loop in (whole, parts):
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert parts.sparse.num_steps == 4
    assert parts.same_as(whole, rtol=1e-3, atol=1e-5)


def test_dense_gradients_also_count_when_every_micro_batch_is_masked():
    whole, parts = Loop(RIGL), Loop(RIGL)
    for _ in range(4):
        whole.backward()
        for part in (slice(0, 6), slice(6, 12)):
            (cross_entropy(parts.model(parts.images[part]), parts.labels[part]) / 2).backward()
            parts.sparse.mask_gradients()
        for loop in (whole, parts):
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert parts.same_as(whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("before", [True, False])
def test_learning_rate_schedulers_before_or_after(before):
    schedulers = []

    def optimizer(parameters):
        made = torch.optim.SGD(parameters, lr=0.1)
        if before:
            schedulers.append(torch.optim.lr_scheduler.StepLR(made, 2, 0.1))
        return made

    loop = Loop(DSR, optimizer)
    if not before:
        schedulers.append(torch.optim.lr_scheduler.StepLR(loop.optimizer, 2, 0.1))
    for _ in range(4):
        loop.train(1)
        schedulers[0].step()
    assert loop.sparse.num_steps == 4
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_steps_a_grad_scaler_skips_do_not_count():
    loop = Loop(DSR)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for poison in (False, True, False):
        loss = cross_entropy(loop.model(loop.images), loop.labels)
        scaler.scale(loss * torch.inf if poison else loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    assert loop.sparse.num_steps == 2
    assert [record.step for record in loop.sparse.history] == [2]


def test_l1_pulls_active_weights_of_sparse_layers_and_nothing_else():
    loop = Loop(regrow.Static(sparsity=0.8, l1=0.01), lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    before = copy.deepcopy(dict(loop.model.named_parameters()))
    for parameter in loop.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    loop.optimizer.step()
    for name, parameter in loop.model.named_parameters():
        pull = 0.01 * before[name].sign() if name in loop.sparse.masks() else 0
        torch.testing.assert_close(parameter, before[name] - pull)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("granularity", ["weight", "kernel", "channel"])
def test_channels_last_before_or_after_attaching(when, granularity):
    def prepare(model):
        return model.to(memory_format=torch.channels_last) if when == "before" else model

    loop = Loop(regrow.SNFS(sparsity=0.8, period=2, granularity=granularity), prepare=prepare).train(3)
    masks = loop.sparse.masks()
    if when == "after":
        loop.model.to(memory_format=torch.channels_last)
        loop.optimizer.state.clear()
    loop.sparse.mask_gradients()
    assert all(torch.equal(mask, masks[name]) for name, mask in loop.sparse.masks().items())
    strides = {
        layer.name: p.stride() for layer, p in zip(loop.sparse.layers, loop.sparse.storage.parameters, strict=True)
    }
    if granularity == "weight":
        for layer, mask in zip(loop.sparse.layers, loop.sparse.storage._masks, strict=True):
            assert mask.stride() == strides[layer.name], "masks lie in memory like their weights"
    for _ in range(4):
        loop.train(1)
        check_invariants(loop.model, loop.optimizer, loop.sparse)


def test_a_model_turned_to_double_after_attaching_goes_on():
    loop = Loop(RIGL).train(2)
    loop.model.double()
    loop.images = loop.images.double()
    loop.optimizer.state.clear()
    loop.train(3)
    check_invariants(loop.model, loop.optimizer, loop.sparse)


def test_weights_replaced_by_new_memory_are_followed():
    loop = Loop(DSR).train(1)
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.data = parameter.data.clone()
    loop.train(3)
    check_invariants(loop.model, loop.optimizer, loop.sparse)


def test_tied_weights_are_pruned_once():
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9, period=1))
    assert [layer.name for layer in sparse.layers] == ["0.weight"]
    assert sparse.budget == 14
    for _ in range(3):
        model(torch.ones(2, 12)).sum().backward()
        optimizer.step()
        check_invariants(model, optimizer, sparse)


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_compiling_the_model_breaks_no_graph_and_recompiles_nothing(name):
    cls = regrow.METHODS[name]
    method = cls(sparsity=0.8) if cls.rewires_every_step else cls(sparsity=0.8, period=2, until=8)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loop = Loop(method)
    compiled = torch.compile(loop.model, backend="aot_eager", fullgraph=True)
    for _ in range(6):
        cross_entropy(compiled(loop.images), loop.labels).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not counters["recompiles"]
    assert loop.sparse.num_steps == 6
    assert Loop(method).train(6).same_as(loop, rtol=1e-4, atol=1e-5)


def test_the_compiled_wrapper_may_be_attached_and_names_have_no_prefix():
    model = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager")
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.SET(sparsity=0.5))
    assert list(sparse.masks()) == ["0.weight"]
