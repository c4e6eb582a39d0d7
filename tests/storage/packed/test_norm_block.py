"""`linear_norm` is norm(linear(x)), with or without ReLU, also where all three are one step of autograd."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import regrow
from regrow.kernels.cpu.norm import Block, Norm
from regrow.kernels.cpu.pattern import make_pattern
from regrow.storage.packed import linear_norm


class Net(nn.Module):
    """Two such blocks, computed as one each or layer by layer."""

    def __init__(self, as_one, bias=True, **norm):
        super().__init__()
        self.as_one = as_one
        self.fc1, self.norm1 = nn.Linear(20, 33, bias=bias), nn.BatchNorm1d(33, **norm)
        self.fc2, self.norm2 = nn.Linear(33, 5, bias=bias), nn.BatchNorm1d(5, **norm)

    def forward(self, x):
        if self.as_one:
            return linear_norm(self.fc2, self.norm2, linear_norm(self.fc1, self.norm1, x, relu=True))
        return self.norm2(self.fc2(F.relu(self.norm1(self.fc1(x)))))


def pair(method=None, dtype=torch.float64, **choices):
    """The same packed network twice, as blocks and layer by layer."""
    found = []
    for as_one in (True, False):
        torch.manual_seed(0)
        model = Net(as_one, **choices).to(dtype)
        if model.norm1.affine:
            nn.init.uniform_(model.norm1.bias, 0.1, 1)  # else rounding decides about units that nothing reaches
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        chosen = method or regrow.Static(sparsity=0.7)
        found.append(
            (model, optimizer, regrow.attach(model, optimizer, chosen, storage=regrow.Packed(kernels="sparse")))
        )
    return found


def nodes(y):
    """The names of all steps of autograd that led to y."""
    seen, todo = [], [y.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            seen.append(node.name())
            todo += [before for before, _ in node.next_functions]
    return seen


def assert_same(a, b):
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, msg=name)


def identity(num_channels):
    """A linear layer that gives what it gets: a pattern and its values."""
    places = torch.arange(num_channels)
    return make_pattern(places, places, num_channels, num_channels), torch.ones(num_channels, dtype=torch.float64)


def test_four_samples_of_one_channel():
    h = torch.tensor([[1.0], [2.0], [3.0], [6.0]]).double()  # mean 3, variance 3.5
    weight, bias, mean, variance = torch.tensor([[2.0], [1.0], [0.0], [1.0]]).double()
    norm = Norm(weight, bias, mean, variance, torch.tensor(4), epsilon=0.5, momentum=0.1, relu=True)
    pattern, values = identity(1)
    block = Block(pattern, norm, len(h), h.dtype)
    y, kept = block.forward(values, h, None)
    assert torch.equal(kept[:4], h)
    assert y.flatten().tolist() == [0, 0, 1, 4]  # 2 (h - 3) / sqrt(3.5 + 0.5) + 1, and nothing below 0
    assert mean.item() == pytest.approx(0.3)
    assert variance.item() == pytest.approx(0.9 + 0.1 * 14 / 3)
    assert norm.num_batches.item() == 5
    before = kept.clone()
    dx, _, dh, dweight, dbias = block.backward(values, h, kept, torch.ones_like(h), needs_input=True)
    assert torch.equal(kept, before)  # another thread may be on its way back through the same pass
    assert dbias.item() == 2  # the two samples that are not cut off
    assert dweight.item() == pytest.approx((0 + 3) / 2)
    assert dh.sum().item() == pytest.approx(0, abs=1e-6)
    assert torch.equal(dx, dh)


def test_a_channel_that_nothing_reaches_stays_at_its_bias():
    h = torch.full((7, 1), 0.1, dtype=torch.float64)
    weight, bias, mean, variance = torch.tensor([[1.0], [0.0], [0.0], [1.0]]).double()
    norm = Norm(weight, bias, mean, variance, torch.tensor(0), epsilon=1e-5, momentum=0.1, relu=True)
    pattern, values = identity(1)
    block = Block(pattern, norm, len(h), h.dtype)
    y, kept = block.forward(values, h, None)
    assert torch.equal(y, torch.zeros_like(y))
    _, _, dh, _, _ = block.backward(values, h, kept, torch.rand_like(h), needs_input=False)
    assert torch.equal(dh, torch.zeros_like(dh))


@settings(deadline=None)  # the first example compiles
@given(
    st.integers(2, 140),
    st.integers(1, 70),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 100),
)
def test_normalising_is_what_torch_does(num_samples, num_channels, relu, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    h = (3 * torch.randn(num_samples, num_channels, generator=generator, dtype=dtype) + 2).requires_grad_()
    own = nn.BatchNorm1d(num_channels).to(dtype)
    with torch.no_grad():
        own.weight.copy_(torch.randn(num_channels, generator=generator))
    running = own.running_mean.clone(), own.running_var.clone(), own.num_batches_tracked.clone()
    norm = Norm(own.weight, own.bias, *running, own.eps, own.momentum, relu)
    pattern, values = identity(num_channels)
    values = values.to(dtype)
    block = Block(pattern, norm, num_samples, dtype)
    y, kept = block.forward(values, h.detach(), None)
    expected = F.relu(own(h)) if relu else own(h)
    dy = torch.randn(h.shape, generator=generator, dtype=dtype)
    if relu and dtype == torch.float32:
        dy[expected.abs() < 1e-4] = 0  # rounding decides there
    expected.backward(dy)
    _, _, *found = block.backward(values, h.detach(), kept, dy, needs_input=False)
    wanted = (expected, own.running_mean, own.running_var, own.num_batches_tracked)
    wanted += (h.grad, own.weight.grad, own.bias.grad)
    for left, right in zip((y, *running, *found), wanted, strict=True):
        torch.testing.assert_close(left, right.detach(), rtol=1e-4, atol=2e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "method", [regrow.DSR(sparsity=0.7, prune=0.1, period=2), regrow.RigL(sparsity=0.7, period=2)], ids=["DSR", "RigL"]
)
def test_training_is_the_same(method, bias):
    (one, *of_one), (plain, *of_plain) = pair(method, bias=bias)
    for _ in range(6):
        x, labels = torch.randn(9, 20, dtype=torch.float64), torch.randint(5, (9,))
        for model, optimizer in ((one, of_one[0]), (plain, of_plain[0])):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    assert_same(one, plain)
    for left, right in zip(of_one[1].masks().values(), of_plain[1].masks().values(), strict=True):
        assert torch.equal(left, right)


def test_it_is_one_step_of_autograd():
    (one, *_), (plain, *_) = pair()
    x = torch.randn(9, 20, dtype=torch.float64)
    assert sum("Block" in name for name in nodes(one(x))) == 2
    assert not any("BatchNorm" in name for name in nodes(one(x)))
    assert any("BatchNorm" in name for name in nodes(plain(x)))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(1000, 20), (1000, 700), (20, 1000)])
def test_large_layers_which_several_threads_share(num_threads, num_inputs, num_outputs):
    """By work the norm, the layer, both or none of them are shared."""
    torch.manual_seed(0)
    linear, norm = nn.Linear(num_inputs, num_outputs), nn.BatchNorm1d(num_outputs)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    regrow.attach(linear, optimizer, regrow.Static(sparsity=0.5), storage=regrow.Packed(kernels="sparse"))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        x, dy = torch.randn(512, num_inputs), torch.randn(512, num_outputs)
        found = []
        for y in (lambda own: linear_norm(linear, norm, own), lambda own: norm(linear(own))):
            own = x.clone().requires_grad_()
            optimizer.zero_grad()
            norm.zero_grad()
            result = y(own)
            result.backward(dy)
            found.append((result, own.grad, linear.packed_values.grad, norm.weight.grad, norm.bias.grad))
        for left, right in zip(*found, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=2e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_inputs_with_gaps_and_gradients_of_inputs(num_threads):
    (one, *_), (plain, *_) = pair(dtype=torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        x = torch.randn(20, 600, 2)[:, ::2, 0].T
        inputs = [x.detach().requires_grad_(), x.detach().requires_grad_()]
        found = [model(own) for model, own in zip((one, plain), inputs, strict=True)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        for y in found:
            y.square().sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(before)


def no_change(model):
    """As it is."""


def listen(model):
    model.norm1.register_forward_hook(lambda *_: None)
    model.norm2.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("choices", "change", "x"),
    [
        ({"affine": False}, no_change, torch.randn(9, 20)),
        ({"momentum": None}, no_change, torch.randn(9, 20)),
        ({"track_running_stats": False}, no_change, torch.randn(9, 20)),
        ({}, nn.Module.eval, torch.randn(9, 20)),
        ({}, listen, torch.randn(9, 20)),
        ({}, no_change, torch.randn(5000, 20)),
    ],
    ids=["no weights", "cumulative", "no running means", "eval", "hooks", "a large batch"],
)
def test_anything_else_is_done_layer_by_layer(choices, change, x):
    (one, *_), (plain, *_) = pair(dtype=torch.float32, **choices)
    change(one)
    change(plain)
    y = one(x)
    assert not any("Block" in name for name in nodes(y))
    torch.testing.assert_close(y, plain(x))
    assert_same(one, plain)


def test_errors_are_those_of_the_layers():
    (one, *_), _ = pair(dtype=torch.float32)
    with pytest.raises(RuntimeError, match="20 inputs"):
        one(torch.randn(9, 21))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        one(torch.randn(1, 20))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, at a graph break
def test_a_dense_or_compiled_model():
    (one, *_), (plain, *_) = pair(dtype=torch.float32)
    x = torch.randn(9, 20)
    compiled = torch.compile(copy.deepcopy(one), backend="aot_eager")
    torch.testing.assert_close(compiled(x), plain(x))
    model = Net(as_one=True)
    assert not any("Block" in name for name in nodes(model(x)))
