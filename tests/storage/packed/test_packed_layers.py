"""Packed layers compute what dense ones do: outputs, gradients, precision, and every kind of convolution."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regrow
from regrow.storage.packed.layers import packed_slots

LAYERS = {
    "linear": (lambda: nn.Linear(12, 7), (5, 12)),
    "linear without bias": (lambda: nn.Linear(12, 7, bias=False), (5, 12)),
    "linear on sequences": (lambda: nn.Linear(12, 7), (2, 3, 12)),
    "linear on one vector": (lambda: nn.Linear(12, 7), (12,)),
    "linear on nothing": (lambda: nn.Linear(12, 7), (0, 12)),
    "conv 1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv 2d": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 7)),
    "conv 3d": (lambda: nn.Conv3d(2, 4, 3, padding=1), (2, 2, 4, 5, 4)),
    "stride, padding and dilation": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(2, 1), dilation=2), (2, 4, 9, 8)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 7)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 8, 7)),
    "same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 8, 7)),
    "same, of even size": (lambda: nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(1, 3)), (2, 4, 8, 9)),
    "valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), (2, 4, 8, 7)),
    "reflect": (lambda: nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect"), (2, 4, 8, 7)),
    "circular, same": (lambda: nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular"), (2, 4, 8)),
    "one picture": (lambda: nn.Conv2d(4, 6, 3), (4, 8, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 4)),
}


def pair(layer, kernels, dtype=torch.float64, sparsity=0.6):
    """The same layer twice, dense with zeros and packed."""
    torch.manual_seed(0)
    dense = layer().to(dtype)
    packed = copy.deepcopy(dense)
    for model, storage in ((dense, "dense"), (packed, regrow.Packed(kernels=kernels))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        regrow.attach(model, optimizer, regrow.Static(sparsity=sparsity), storage=storage)
    return dense, packed


def gradients(model, x, loss):
    x = x.clone().requires_grad_()
    for parameter in model.parameters():
        parameter.grad = None
    loss(model(x)).backward()
    return x.grad, [parameter.grad for name, parameter in model.named_parameters() if "bias" in name]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_those_of_a_dense_layer(name, kernels):
    layer, shape = LAYERS[name]
    dense, packed = pair(layer, kernels)
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(packed(x), dense(x))
    (dx, biases), (dx_packed, biases_packed) = (gradients(m, x, lambda y: y.sin().sum()) for m in (dense, packed))
    torch.testing.assert_close(dx_packed, dx)
    torch.testing.assert_close(biases_packed, biases)
    (slot,) = packed_slots(packed).values()
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(dense.weight.grad))


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("name", ["linear", "stride, padding and dilation", "groups"])
def test_gradients_agree_with_finite_differences(name, kernels):
    layer, shape = LAYERS[name]
    _, packed = pair(layer, kernels)
    names, parameters = zip(*packed.named_parameters(), strict=True)

    def compute(x, *own):
        return torch.func.functional_call(packed, dict(zip(names, own, strict=True)), (x,))

    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compute, (x, *(p.detach().requires_grad_() for p in parameters)))


@pytest.mark.parametrize("name", ["linear", "conv 2d"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_gives_what_it_gives_dense_layers(name, dtype):
    layer, shape = LAYERS[name]
    dense, packed = pair(layer, "auto", torch.float32)
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        one, other = dense(x), packed(x)
        assert one.dtype == other.dtype == dtype
        torch.testing.assert_close(one, other)
        (dx, _), (dx_packed, _) = (gradients(m, x, lambda y: y.float().sin().sum()) for m in (dense, packed))
    torch.testing.assert_close(dx_packed, dx)
    (slot,) = packed_slots(packed).values()
    assert packed.packed_values.grad.dtype == torch.float32
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(dense.weight.grad), rtol=1e-2, atol=1e-2)


def test_a_layer_in_bfloat16():
    dense, packed = pair(LAYERS["conv 2d"][0], "auto", torch.bfloat16)
    x = torch.randn(2, 4, 8, 7).bfloat16()
    assert torch.equal(packed(x), dense(x))


def test_a_wrong_number_of_inputs_is_refused():
    _, linear = pair(LAYERS["linear"][0], "sparse")
    with pytest.raises(RuntimeError, match="12 inputs"):
        linear(torch.randn(5, 11).double())
    _, conv = pair(LAYERS["conv 2d"][0], "sparse")
    with pytest.raises(RuntimeError, match="4 input channels"):
        conv(torch.randn(2, 3, 8, 8).double())


def test_reading_the_weight_expands_it_and_gradients_flow_back():
    dense, packed = pair(LAYERS["linear"][0], "sparse")
    assert torch.equal(packed.weight, dense.weight)
    for model in (dense, packed):
        model.weight.square().sum().backward()
    assert torch.equal(packed.packed_values.grad, 2 * packed.packed_values)
    (gradient,) = torch.autograd.grad(packed.weight.pow(3).sum(), packed.packed_values, create_graph=True)
    gradient.sum().backward()
    torch.testing.assert_close(packed.packed_values.grad, 8 * packed.packed_values.detach())


class Scaled(nn.Linear):
    """A layer that does something of its own with its weight."""

    def forward(self, x):
        return nn.functional.linear(x, 2 * self.weight, self.bias)


def test_a_layer_with_a_forward_of_its_own_reads_its_weight():
    dense, packed = pair(lambda: Scaled(12, 7), "sparse")
    x = torch.randn(5, 12).double()
    assert torch.equal(packed(x), dense(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


def test_tied_layers_share_their_values():
    dense, packed = pair(Tied, "sparse")
    x = torch.randn(4, 6).double()
    torch.testing.assert_close(packed(x), dense(x))
    for model in (dense, packed):
        model(x).sin().sum().backward()
    slot = packed_slots(packed)["second.weight"]
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(dense.first.weight.grad))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_computes_a_layer_twice(use_reentrant):
    _, packed = pair(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), "sparse")
    x = torch.randn(4, 6).double().requires_grad_()
    checkpoint(packed, x, use_reentrant=use_reentrant).sin().sum().backward()
    once = packed.packed_values.grad.clone()
    packed.packed_values.grad = None
    packed(x).sin().sum().backward()
    assert torch.equal(packed.packed_values.grad, once)


def test_backward_can_run_twice_and_in_inference_mode_nothing_is_left_behind():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    with torch.inference_mode():
        packed(torch.randn(3, 12).double())
    loss = packed(torch.randn(3, 12).double()).sum()
    loss.backward(retain_graph=True)
    once = packed.packed_values.grad.clone()
    loss.backward()
    assert torch.equal(packed.packed_values.grad, 2 * once)


def test_frozen_values_get_no_gradient_and_thaw_again():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    x = torch.randn(3, 12).double()
    packed.packed_values.requires_grad_(False)
    packed(x).sum().backward()
    assert packed.packed_values.grad is None
    packed.packed_values.requires_grad_(True)
    packed(x).sum().backward()
    assert packed.packed_values.grad is not None


def test_values_that_changed_since_the_forward_pass_are_noticed():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    loss = packed(torch.randn(3, 12).double().requires_grad_()).sum()
    with torch.no_grad():
        packed.packed_values.mul_(2)
    with pytest.raises(RuntimeError, match="between a forward and its backward"):
        loss.backward()


def test_another_precision_is_followed():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    before = packed.weight
    packed.float()
    assert packed(torch.randn(3, 12)).dtype == torch.float32
    packed(torch.randn(3, 12)).sum().backward()
    assert packed.packed_values.grad.dtype == torch.float32
    assert torch.equal(packed.weight, before.float())


def test_a_compiled_model_computes_and_learns_the_same():
    _, packed = pair(lambda: nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7)), "sparse")
    x = torch.randn(3, 12).double()
    compiled = torch.compile(packed, backend="aot_eager")
    torch.testing.assert_close(compiled(x), packed(x))
    compiled(x).sum().backward()
    once = packed.packed_values.grad.clone()
    packed.packed_values.grad = None
    packed(x).sum().backward()
    torch.testing.assert_close(packed.packed_values.grad, once)
