"""Loops without hooks, optimizers in optimizers, failed and skipped steps, gradients that move."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import regrow
from every_method import EVERY_STEP, make
from loops import DSR, EXACT, RIGL, Loop
from regrow.testing import check_invariants


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
    assert manual.sparse.num_steps == hooked.sparse.num_steps
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
    assert loop.sparse.num_steps == 6
    assert [record.step for record in loop.sparse.history] == [2, 4, 6]
    assert loop.same_as(Loop(RIGL).train(6), **EXACT)
    loop.optimizer.step(lambda: loop.backward())
    assert loop.sparse.num_steps == 7


def test_a_step_that_failed_does_not_stop_the_counting():
    loop = Loop(DSR)

    def fail():
        raise KeyError("no data")

    with pytest.raises(KeyError):
        loop.optimizer.step(fail)
    loop.train(2)
    assert loop.sparse.num_steps == 2


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
    assert scaled.sparse.num_steps == 4
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
    assert loop.sparse.num_steps == 1


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


@pytest.mark.parametrize(
    "method", [DSR, RIGL, *(make(regrow.METHODS[name], sparsity=0.8, temperature=1e-3) for name in EVERY_STEP)]
)
def test_an_optimizer_that_gives_parameters_another_memory_in_its_step(method):
    class Moving(torch.optim.SGD):
        def step(self, closure=None):
            loss = super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data = parameter.data.clone()
            return loss

    loop = Loop(method, lambda parameters: Moving(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)).train(6)
    check_invariants(loop.model, loop.optimizer, loop.sparse)
    assert loop.same_as(Loop(method).train(6), **EXACT)


def test_the_invariants_are_those_of_the_memory_that_parameters_have_now():
    loop = Loop(regrow.Static(sparsity=0.8)).train(2)
    weight = loop.model[0].weight
    weight.data = weight.data + 1
    with pytest.raises(AssertionError, match="not 0"):
        check_invariants(loop.model, loop.optimizer, loop.sparse)
