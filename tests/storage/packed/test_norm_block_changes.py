"""`linear_norm` after something has changed: nothing that was once found out about layers outlives its truth."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

import regrow
from regrow.storage.computed_weights import expanders_of
from regrow.storage.packed import linear_norm
from regrow.storage.packed.places import IndexedPlaces


class Net(nn.Module):
    """One block, computed as one or layer by layer."""

    def __init__(self, as_one):
        super().__init__()
        self.as_one, self.fc, self.norm = as_one, nn.Linear(20, 33), nn.BatchNorm1d(33)

    def forward(self, x):
        return linear_norm(self.fc, self.norm, x) if self.as_one else self.norm(self.fc(x))


class Twice(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


def make(as_one, layers=None):
    torch.manual_seed(0)
    model = Net(as_one)
    nn.init.uniform_(model.norm.weight)
    nn.init.uniform_(model.norm.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    regrow.attach(model, optimizer, regrow.Static(sparsity=0.7), storage=regrow.Packed(kernels="sparse"), layers=layers)
    return model


def train(model, x, others=None):
    """What a pass gives, and everything that it leaves behind."""
    y = functional_call(model, others or {}, (x,))
    (y * torch.arange(33) + y.square()).sum().backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    return {"y": y.detach(), **model.state_dict(), **gradients}


def both(change, others=None):
    """The results of both, after a pass in which everything was as usual."""
    found, x = [], torch.randn(9, 20)
    for as_one in (True, False):
        model = make(as_one)
        model(x)
        change(model)
        found.append(train(model, x, others))
    return found


def no_change(model):
    """As it is."""


def another_forward(module):
    old = module.forward
    module.forward = lambda x: old(x).exp()


CHANGES = {
    "a norm without bias": lambda model: setattr(model.norm, "bias", None),
    "running means that stay": lambda model: setattr(model.norm, "track_running_stats", False),
    "no count of batches": lambda model: setattr(model.norm, "num_batches_tracked", None),
    "batches counted in floats": lambda model: setattr(model.norm, "num_batches_tracked", torch.tensor(3.0)),
    "a running variance with gaps": lambda model: setattr(model.norm, "running_var", torch.ones(66)[::2]),
    "a parametrized norm": lambda model: parametrize.register_parametrization(model.norm, "weight", Twice()),
    "a parametrized bias": lambda model: parametrize.register_parametrization(model.fc, "bias", Twice()),
    "another forward pass of the layer": lambda model: another_forward(model.fc),
    "another forward pass of the norm": lambda model: another_forward(model.norm),
    "a hook before the way back": lambda model: model.norm.register_full_backward_pre_hook(lambda _, dy: (3 * dy[0],)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_followed(change):
    one, plain = both(change)
    for name, expected in plain.items():
        torch.testing.assert_close(one[name], expected, rtol=1e-4, atol=1e-3, msg=name)


@pytest.mark.parametrize("name", ["norm.weight", "norm.bias", "fc.bias"])
def test_parameters_with_gaps(name):
    one, plain = both(no_change, {name: torch.rand(66)[::2]})
    torch.testing.assert_close(one, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("others", [{"norm.bias": torch.zeros(1)}, {"norm.weight": torch.ones(33).double()}])
def test_parameters_that_do_not_fit_are_refused(others):
    model, x = make(True), torch.randn(9, 20)
    model(x)
    with pytest.raises(RuntimeError, match=r"should contain 33|Float"):
        functional_call(model, others, (x,))


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.half])
def test_a_layer_of_another_dtype_is_refused(change):
    model, x = make(True), torch.randn(9, 20)
    model(x)
    change(model.fc)
    with pytest.raises(RuntimeError, match="dtype"):
        model(x)


@pytest.mark.parametrize("convert", [torch.Tensor.double, lambda values: values.repeat_interleave(2)[::2]])
def test_values_that_the_kernels_would_misread_are_refused(convert):
    model, x = make(True), torch.randn(9, 20)
    model(x)
    with pytest.raises((RuntimeError, ValueError), match=r"dtype|takes as many values"):
        functional_call(model, {"packed_values": convert(model.packed_values.detach())}, (x,))


def test_a_bias_that_is_packed_too():
    x = torch.randn(9, 20)
    one, plain = (train(make(as_one, layers=["fc.weight", "fc.bias"]), x) for as_one in (True, False))
    torch.testing.assert_close(one, plain, rtol=1e-4, atol=1e-3)


def imaginary_part_of_a_conjugate(*shape):
    """Numbers whose sign is beside their memory."""
    return torch.complex(torch.zeros(shape), torch.randn(shape)).conj().imag


def test_signs_beside_the_memory_are_seen():
    x, dy = imaginary_part_of_a_conjugate(9, 20), imaginary_part_of_a_conjugate(9, 33)
    assert x.is_neg()
    assert dy.is_neg()
    expected = None
    for as_one in (True, False):
        for given_x, given_dy in ((x.resolve_neg(), dy.resolve_neg()), (x.resolve_neg(), dy), (x, dy)):
            model = make(as_one)
            y = model(given_x)
            y.backward(given_dy)
            found = y.detach(), model.packed_values.grad
            expected = expected or found
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_hooks_for_all_modules_are_called():
    seen = []
    hook = register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        make(True)(torch.randn(9, 20))
    finally:
        hook.remove()
    assert nn.BatchNorm1d in seen


def test_other_norms_are_what_they_say():
    model, x = make(True), torch.randn(9, 20)
    norm = nn.LayerNorm(33)
    torch.testing.assert_close(linear_norm(model.fc, norm, x), norm(model.fc(x)))


def test_nothing_keeps_a_model_that_nobody_has():
    model = make(True)
    model.fc.parents = [model]
    model(torch.randn(9, 20))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["weight", "running_mean", "running_var"])
def test_another_memory_of_the_same_tensor_is_seen(name):
    model, x = make(as_one=True), torch.randn(9, 20)
    model(x)
    tensor = getattr(model.norm, name)
    tensor.data = tensor.data[:2].clone()
    with pytest.raises(RuntimeError, match="33 elements not 2"):  # torch's own words
        model(x)


def test_transforms_of_torch_func_are_refused_with_a_reason():
    model, x = make(as_one=True), torch.randn(9, 20)
    with pytest.raises(RuntimeError, match=r"call torch\.autograd\.grad instead"):
        torch.func.grad(lambda own: functional_call(model, own, (x,)).sum())(dict(model.named_parameters()))


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.double])
def test_a_norm_that_is_converted_on_the_way_is_refused(convert):
    model = make(as_one=True)
    y = model(torch.randn(9, 20))
    convert(model.norm)
    with pytest.raises(RuntimeError, match="converted between a forward and its backward pass"):
        y.sum().backward()


def test_a_momentum_that_is_a_tensor_is_read_in_every_pass():
    one, plain = (make(as_one) for as_one in (True, False))
    for model in (one, plain):
        model.norm.momentum = torch.tensor(0.5)
        for batch in (torch.ones(9, 20), 2 * torch.ones(9, 20)):
            model(batch + torch.arange(9.0)[:, None])
            model.norm.momentum.fill_(0.1)
    torch.testing.assert_close(one.norm.running_mean, plain.norm.running_mean)


def test_places_that_follow_the_values_from_another_device():
    """As after `model.cpu()`: the first use of the values brings the places along."""

    class Elsewhere(IndexedPlaces):
        @property
        def device(self):
            return torch.device("cuda", 0)

    model, x = make(as_one=True), torch.randn(9, 20)
    expected = model(x)
    pack = expanders_of(model.fc)["weight"].pack
    pack.places, pack._made_for = [Elsewhere(own.layer, own.units()) for own in pack.places], ()
    assert torch.equal(model(x), expected)
