"""Moments of grown weights on a GPU, where steps may be captured.

pytest -m gpu tests/methods/effects/test_gpu_moments.py
"""

import copy

import pytest
import torch
from torch import nn

import regrow
from gpu_network import DEVICE, a_batch, captured, never_waiting, small_network, warm_up

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(
        "ignore:This instance was constructed with capturable=True"
    ),  # in steps before a capture
]


def adamw(model, **options):
    rate = torch.tensor(0.01, device=DEVICE)
    return torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, weight_decay=0.1, **options)


def attached(moments, **options):
    model = small_network(torch.channels_last)
    optimizer = adamw(model, **options)
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=5, until=10), moments=moments)
    return model, optimizer, sparse


def a_step(model, optimizer):
    images, labels = a_batch()

    def step():
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("moments", ["aged", "informed"])
@pytest.mark.parametrize("name", ["AdamW", "fused", "foreach"])
def test_a_captured_step_trains_like_an_eager_one(moments, name):
    trio = attached(moments, **({} if name == "AdamW" else {name: True}))
    model, optimizer, sparse = trio
    step = a_step(model, optimizer)
    warm_up(step, 2)
    eager_model, eager_optimizer, eager_sparse = copy.deepcopy(trio)
    graph = captured(step)
    eager_step = a_step(eager_model, eager_optimizer)
    for _ in range(13):
        graph.replay()
        sparse.advance()
        eager_step()
        for ours, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        regrow.testing.check_invariants(*trio)
    assert all(torch.equal(mask, eager_sparse.masks()[name]) for name, mask in sparse.masks().items())
    assert sparse.num_steps == 15


def test_a_captured_run_that_is_rolled_back_while_weights_are_young_takes_the_same_steps_again(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model, optimizer, sparse = trio = attached("aged")
    step = a_step(model, optimizer)
    warm_up(step, 6)
    graph = captured(step)

    def some_steps():
        for _ in range(3):
            graph.replay()
            sparse.advance()
        return [parameter.detach().clone() for parameter in model.parameters()]

    weights = [parameter.detach().clone() for parameter in model.parameters()]
    states = copy.deepcopy([dict(optimizer.state[own]) for own in model.parameters()]), sparse.state_dict()
    first = some_steps()
    with torch.no_grad():
        for parameter, weight, state in zip(model.parameters(), weights, states[0], strict=True):
            parameter.copy_(weight)
            for name, value in state.items():
                optimizer.state[parameter][name].copy_(value)
    sparse.load_state_dict(states[1])
    assert all(map(torch.equal, first, some_steps()))
    regrow.testing.check_invariants(*trio)


def test_a_step_with_young_weights_never_waits_for_the_device():
    model, optimizer, _ = attached("aged")
    step = a_step(model, optimizer)
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    images, labels = a_batch()
    nn.functional.cross_entropy(model(images), labels).backward()
    with never_waiting():
        optimizer.step()


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("moments", ["aged", "informed"])
def test_the_promises_hold_on_a_gpu(moments, storage):
    regrow.testing.check_method(regrow.SET(sparsity=0.8), device=DEVICE, storage=storage, moments=moments)
