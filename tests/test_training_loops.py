"""Anybody's training loop: schedulers, closures, accumulation, clipping, scaling, groups, memory formats, compile."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow
from regrow.testing import check_invariants

RIGL = regrow.RigL(sparsity=0.8, period=2)
DSR = regrow.DSR(sparsity=0.8, period=2, l1=1e-3)


class Loop:
    """A small image classifier in training."""

    def __init__(self, method, optimizer=None, prepare=lambda model: model):
        torch.manual_seed(0)
        self.model = prepare(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
        )
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3))
        self.optimizer = make(self.model.parameters())
        self.images, self.labels = torch.randn(12, 3, 6, 6), torch.randint(5, (12,))
        self.sparse = regrow.attach(self.model, self.optimizer, method)

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

    def same_as(self, other, **tolerance):
        theirs = dict(other.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            torch.testing.assert_close(parameter, theirs[name], **tolerance)
        masks = other.sparse.masks()
        return all(torch.equal(mask, masks[name]) for name, mask in self.sparse.masks().items())


EXACT = {"rtol": 0, "atol": 0}


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
    assert parts.sparse.step == 4
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
    assert loop.sparse.step == 4
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
    assert loop.sparse.step == 2
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


def test_parameter_groups_with_rates_of_their_own():
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5))
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    sparse = regrow.attach(model, optimizer, regrow.DeepR(sparsity=0.5, l1=1e-2, temperature=1e-2))
    before = copy.deepcopy(model[0].weight)
    for _ in range(3):
        model(torch.ones(2, 10)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        check_invariants(model, optimizer, sparse)
    assert torch.equal(model[0].weight, before), "no rate, no walk"
    assert sparse.history[-1].pruned["1.weight"] > 0


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
        layer.name: p.stride() for layer, p in zip(loop.sparse.layers, loop.sparse._storage.parameters, strict=True)
    }
    if granularity == "weight":
        for layer, mask in zip(loop.sparse.layers, loop.sparse._storage.masks, strict=True):
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
    method = cls(sparsity=0.8) if cls.walks else cls(sparsity=0.8, period=2, until=8)
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
    assert loop.sparse.step == 6
    assert Loop(method).train(6).same_as(loop, rtol=1e-4, atol=1e-5)


def test_the_compiled_wrapper_may_be_attached_and_names_have_no_prefix():
    model = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager")
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.SET(sparsity=0.5))
    assert list(sparse.masks()) == ["0.weight"]


def test_a_loop_without_hooks_counts_by_advance():
    """What a captured graph does: gradients masked inside, steps counted outside."""
    hooked, manual = Loop(RIGL).train(6), Loop(RIGL)
    for _ in range(6):
        manual.backward()
        manual.sparse.mask_gradients()
        with torch.no_grad():
            _sgd_by_hand(manual)
        manual.optimizer.zero_grad()
        manual.sparse.advance()
    assert manual.sparse.step == hooked.sparse.step
    assert manual.same_as(hooked)


def _sgd_by_hand(loop):
    group = loop.optimizer.param_groups[0]
    for parameter in loop.model.parameters():
        gradient = parameter.grad + group["weight_decay"] * parameter
        buffer = loop.optimizer.state[parameter].get("momentum_buffer")
        buffer = gradient.clone() if buffer is None else buffer.mul_(group["momentum"]).add_(gradient)
        loop.optimizer.state[parameter]["momentum_buffer"] = buffer
        parameter -= group["lr"] * buffer


def test_rigl_says_so_when_nobody_kept_the_gradient():
    loop = Loop(regrow.RigL(sparsity=0.8, period=1))
    with pytest.raises(RuntimeError, match="call mask_gradients"):
        loop.sparse.advance()


def test_an_optimizer_that_calls_its_parents_step_is_counted_once():
    class Verbose(torch.optim.SGD):
        def step(self, fn=None):
            return super().step(fn)

    loop = Loop(RIGL, lambda parameters: Verbose(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)).train(6)
    assert loop.sparse.step == 6
    assert [record.step for record in loop.sparse.history] == [2, 4, 6]
    assert loop.same_as(Loop(RIGL).train(6), **EXACT)
    loop.optimizer.step(lambda: loop.backward())
    assert loop.sparse.step == 7


def test_a_step_that_failed_does_not_stop_the_counting():
    loop = Loop(DSR)

    def fail():
        raise KeyError("no data")

    with pytest.raises(KeyError):
        loop.optimizer.step(fail)
    loop.train(2)
    assert loop.sparse.step == 2


def test_a_gradient_with_a_graph_of_its_own_is_masked():
    loop = Loop(regrow.Static(sparsity=0.8, l1=1e-3))
    gradients = torch.autograd.grad(
        cross_entropy(loop.model(loop.images), loop.labels), list(loop.model.parameters()), create_graph=True
    )
    for parameter, gradient in zip(loop.model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    loop.optimizer.step()
    check_invariants(loop.model, loop.optimizer, loop.sparse)


@pytest.mark.parametrize("method", [RIGL, regrow.SNFS(sparsity=0.8, period=2), DSR])
def test_clipping_under_a_grad_scaler_leaves_no_trace_of_skipped_steps(method):
    """The gradient of a skipped step is thrown away after it was masked, and no hook says so."""
    plain, scaled = Loop(method).train(4), Loop(method)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000, backoff_factor=0.5)
    for poison in (False, True, False, True, False, False):
        loss = cross_entropy(scaled.model(scaled.images), scaled.labels)
        scaler.scale(loss * torch.inf if poison else loss).backward()
        scaler.unscale_(scaled.optimizer)
        scaled.sparse.mask_gradients()
        scaler.step(scaled.optimizer)
        scaler.update()
        scaled.optimizer.zero_grad()
    assert scaled.sparse.step == 4
    assert scaled.same_as(plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [RIGL, regrow.Static(sparsity=0.8, l1=0.01)])
def test_gradients_clipped_into_copies_are_the_same_gradients(method):
    plain, copying = Loop(method).train(4), Loop(method)
    for _ in range(4):
        copying.backward()
        copying.sparse.mask_gradients()
        for parameter in copying.model.parameters():
            parameter.grad = parameter.grad.clone()
        copying.optimizer.step()
        copying.optimizer.zero_grad()
    assert copying.same_as(plain, **EXACT)


def test_l1_is_added_once_also_where_a_layer_gets_its_gradient_late():
    loop = Loop(regrow.Static(sparsity=0.8, l1=1.0))
    weights = [p for name, p in loop.model.named_parameters() if name in loop.sparse.masks()]
    weights[1].grad = torch.zeros_like(weights[1])
    loop.sparse.mask_gradients()
    weights[0].grad = torch.zeros_like(weights[0])
    loop.sparse.mask_gradients()
    for weight in weights[:2]:
        assert torch.equal(weight.grad, weight.sign())


def test_detaching_in_a_callback_is_safe_beside_other_hooks():
    loop = Loop(regrow.SET(sparsity=0.8, period=1))
    loop.sparse.on_rewire(lambda record: loop.sparse.detach())
    seen = []
    loop.optimizer.register_step_post_hook(lambda *_: seen.append(1))
    loop.train(2)
    assert len(seen) == 2
    assert loop.sparse.step == 1


def test_state_that_begins_with_a_constant_is_cleared_where_weights_are_inactive():
    class Warm(torch.optim.Optimizer):
        """Keeps an average of squared gradients that begins at 1."""

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    average = state.setdefault("average", torch.ones_like(parameter))
                    average.mul_(0.9).addcmul_(parameter.grad, parameter.grad)
                    parameter.addcdiv_(parameter.grad, average.sqrt() + 1e-8, value=-0.01)

    loop = Loop(DSR, Warm)
    for _ in range(5):
        loop.train(1)
        check_invariants(loop.model, loop.optimizer, loop.sparse)
