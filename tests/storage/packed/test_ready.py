"""A packed linear layer on one sample, where nothing is learnt: the bits of any other pass, whatever changes."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call

import regrow
from regrow.storage.packed import ready
from regrow.storage.packed.layers import packed_slots


def make(*, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Linear(20, 30, bias=bias).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    storage = regrow.Packed(kernels="sparse")
    return model, optimizer, regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=1), storage=storage)


def sample(*shape, dtype=torch.float32):
    return torch.randn(*shape, 20, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.fixture
def computed(monkeypatch):
    """The samples that were computed in the short way."""
    seen = []
    vector_forward = ready.vector_forward
    monkeypatch.setattr(ready, "vector_forward", lambda *given: (seen.append(given[2]), vector_forward(*given)))
    return seen


@pytest.mark.parametrize("shape", [(1,), (), (1, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_are_those_of_training_and_of_a_batch(shape, bias, dtype, computed):
    model, *_ = make(bias=bias, dtype=dtype)
    x = sample(*shape, dtype=dtype)
    learning = model(x)
    assert not computed
    with torch.no_grad():
        found = [model(x), model(x)]
        in_batch = model(torch.cat([x.view(1, 20), torch.ones(2, 20, dtype=dtype)]))[0]
    assert len(computed) == 2
    assert learning.requires_grad
    assert learning.shape == (*shape, 30)
    assert all(torch.equal(y, learning) and not y.requires_grad for y in found)
    assert torch.equal(found[0].flatten(), in_batch)


def no_change(model, optimizer, sparse):
    """None at all."""


def train(model, optimizer, sparse):
    """Values and topology move."""
    model(sample(4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def change_values(model, optimizer, sparse):
    with torch.no_grad():
        model.packed_values.mul_(2)


def change_bias(model, optimizer, sparse):
    with torch.no_grad():
        model.bias.add_(1)


def move_bias(model, optimizer, sparse):
    model.bias.data = model.bias.data.clone() + 1


def replace_bias(model, optimizer, sparse):
    model.bias = nn.Parameter(torch.ones(30))


def spread_bias(model, optimizer, sparse):
    model.bias = nn.Parameter(torch.arange(60.0)[::2])


BIASES = torch.arange(60.0)


def spread_bias_in_its_memory(model, optimizer, sparse):
    model.bias.data = BIASES[::2] if model.bias.is_contiguous() else BIASES[:30]


def drop_bias(model, optimizer, sparse):
    model.bias = None


def load_a_state(model, optimizer, sparse):
    model.load_state_dict({key: 2 * own if own.is_floating_point() else own for key, own in model.state_dict().items()})


@pytest.mark.parametrize(
    "change",
    [
        no_change, train, change_values, change_bias, move_bias, replace_bias, spread_bias, spread_bias_in_its_memory,
        drop_bias, load_a_state,
    ],
)  # fmt: skip
def test_changes_are_followed(change):
    trio, x = make(), sample(1)
    model = trio[0]
    for _ in range(3):
        with torch.no_grad():
            model(x)
        change(*trio)
        dense = functional_call(
            nn.Linear(20, 30, bias=model.bias is not None),
            {"weight": model.weight} | ({} if model.bias is None else {"bias": model.bias}),
            (x,),
        )
        with torch.no_grad():
            torch.testing.assert_close(model(x), dense.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_is_followed(dtype):
    model, *_ = make()
    with torch.no_grad():
        model(sample(1))
        expected = model(sample(1)).to(dtype)
        model.to(dtype)
        torch.testing.assert_close(model(sample(1).to(dtype)), expected)


def test_inputs_with_gaps_and_signs_beside_the_memory():
    model, *_ = make()
    wide = torch.randn(20, 3)
    conjugate = torch.imag(torch.complex(wide, wide).conj())
    with torch.no_grad():
        assert torch.equal(model(wide[:, 1]), model(wide[:, 1].clone()))
        assert torch.equal(model(conjugate[:, 1]), model(-wide[:, 1].clone()))


def test_where_nothing_requires_a_gradient_nothing_is_kept_for_one(computed):
    model, *_ = make()
    model.requires_grad_(False)
    assert model(sample(1)).grad_fn is None
    assert model(sample(3)).grad_fn is None
    assert len(computed) == 1
    x = sample(1).requires_grad_()
    model(x).sum().backward()
    torch.testing.assert_close(x.grad, model.weight.sum(0, keepdim=True))


def test_batches_of_nothing_and_inputs_of_nothing():
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    regrow.attach(model, optimizer, regrow.Static(sparsity=0.5), storage=regrow.Packed(kernels="sparse"))
    with torch.no_grad():
        assert model(torch.ones(0, 20)).shape == (0, 20)
        assert model(torch.ones(20, 1, 20)).shape == (20, 1, 20)
        with pytest.raises(RuntimeError, match="20 inputs"):
            model(torch.ones(1, 19))


def test_autocast_computes_in_its_precision(computed):
    model, *_ = make()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(sample(1)).dtype == torch.bfloat16
    assert not computed


def test_derivatives_that_would_be_lost_are_refused():
    model, *_ = make()
    model.requires_grad_(False)
    with torch.no_grad():
        model(sample(1))
    with pytest.raises(RuntimeError):
        torch.func.vmap(model)(sample(3))
    with forward_ad.dual_level(), pytest.raises(RuntimeError):
        model(forward_ad.make_dual(sample(1), torch.ones(1, 20)))


def test_in_inference_mode_and_in_a_copy():
    model, *_ = make()
    with torch.no_grad():
        expected = model(sample(1))
    with torch.inference_mode():
        assert torch.equal(model(sample(1)), expected)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.packed_values.zero_()
        assert torch.equal(twin(sample(1)), twin.bias[None])
        assert torch.equal(model(sample(1)), expected)


def test_a_bias_that_is_packed_too():
    torch.manual_seed(0)
    model = nn.Linear(20, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    storage = regrow.Packed(kernels="sparse")
    regrow.attach(model, optimizer, regrow.Static(sparsity=0.5), layers=["weight", "bias"], storage=storage)
    assert set(packed_slots(model)) == {"weight", "bias"}
    with torch.no_grad():
        torch.testing.assert_close(model(sample(1)), sample(1) @ model.weight.t() + model.bias)
