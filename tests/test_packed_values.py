"""The vector of packed values in other people's hands: replaced, and changed at the wrong time."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import regrow
from test_packed import METHODS, Run


def test_a_functional_call_computes_with_the_values_it_is_given():
    run = Run(METHODS["Static"])
    own = run.model.packed_values
    expected = run.model(run.images)
    for values in (own.detach().clone().requires_grad_(), own.detach().requires_grad_()):
        output = functional_call(run.model, {"packed_values": values}, run.images)
        assert torch.equal(output, expected)
        output.sum().backward()
        assert values.grad.abs().sum() > 0
        assert own.grad is None
    zeros = functional_call(run.model, {"packed_values": torch.zeros_like(own)}, run.images)
    assert not torch.equal(zeros, expected)
    step = own - 0.1 * own
    functional_call(run.model, {"packed_values": step}, run.images).sum().backward()
    assert own.grad.abs().sum() > 0
    with torch.inference_mode():
        functional_call(run.model, {"packed_values": torch.zeros_like(own)}, run.images)


def test_transformations_of_functions_are_refused():
    run = Run(METHODS["Static"])

    def loss(values):
        return functional_call(run.model, {"packed_values": values}, run.images).sum()

    with pytest.raises(RuntimeError, match=r"torch\.autograd\.grad instead"):
        torch.func.grad(loss)(run.model.packed_values.detach())


def test_assigned_values_are_computed_with_but_not_trained_by_an_optimizer_that_has_others():
    run = Run(METHODS["Static"])
    state = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    state["packed_values"] *= 2
    weight = run.model[6].weight.detach().clone()
    run.model.load_state_dict(state, assign=True)
    assert torch.equal(run.model[6].weight, 2 * weight)
    run.backward()
    with pytest.raises(RuntimeError, match="another packed_values than the one its optimizer trains"):
        run.optimizer.step()


def test_values_may_change_before_the_way_back_where_they_are_not_needed_again():
    for model in (nn.Linear(6, 4), nn.ConvTranspose1d(6, 4, 1)):
        x = torch.randn(2, 6, *[1] * (model.weight.ndim - 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=2), storage="packed", kernels="sparse")
        for is_refused in (False, True):
            loss = model(x).sum()
            model.packed_values.grad = torch.ones_like(model.packed_values)
            optimizer.step()  # the second one rewires
            if is_refused:
                with pytest.raises(RuntimeError, match="between a forward and its backward"):
                    loss.backward()
            else:
                loss.backward()
