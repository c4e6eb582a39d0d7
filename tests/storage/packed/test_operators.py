"""Packed layers in compiled graphs: nothing breaks, nothing compiles anew, and the bits are those of eager training."""

import copy

import pytest
import torch
from test_packed_layers import LAYERS, Scaled, Tied, gradients, pair
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

import regrow
from regrow.storage.packed.layers import packed_slots

BACKENDS = ["eager", "aot_eager"]
METHODS = {
    "DSR": regrow.DSR(sparsity=0.8, period=1),
    "SET": regrow.SET(sparsity=0.8, period=1),
    "RigL": regrow.RigL(sparsity=0.8, period=1, until=1000),
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Training:
    """A residual network that is rewired after every step."""

    def __init__(self, method, sparsities=()):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 16), *(Block(16) for _ in range(3)), nn.Linear(16, 5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage="packed")
        self.x, self.labels = torch.randn(8, 12), torch.randint(5, (8,))

    def train(self, forward, num_steps=20, precision=None):
        for _ in range(num_steps):
            with torch.autocast("cpu", precision, enabled=precision is not None):
                y = forward(self.x)
            cross_entropy(y.float(), self.labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def is_same_as(self, other):
        state, theirs = self.model.state_dict(), other.model.state_dict()
        return all(torch.equal(tensor, theirs[name]) for name, tensor in state.items())


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_twenty_rewirings_in_one_graph(name, backend, precision):
    plain, compiled = Training(METHODS[name]), Training(METHODS[name])
    plain.train(plain.model, precision=precision)
    compiled.train(torch.compile(compiled.model, backend=backend, fullgraph=True), precision=precision)
    assert counters["stats"]["unique_graphs"] == 1
    assert len(compiled.sparse.history) == 20
    assert compiled.is_same_as(plain)


def test_inductor_makes_one_graph_too():
    plain, compiled = Training(METHODS["DSR"]), Training(METHODS["DSR"])
    plain.train(plain.model)
    compiled.train(torch.compile(compiled.model, fullgraph=True))
    assert counters["stats"]["unique_graphs"] == 1
    assert all(torch.equal(mask, plain.sparse.masks()[name]) for name, mask in compiled.sparse.masks().items())


def test_blocks_that_are_compiled_one_by_one_share_a_graph():
    plain, compiled = Training(METHODS["DSR"]), Training(METHODS["DSR"])
    for block in compiled.model[1:4]:
        block.compile(backend="aot_eager", fullgraph=True)
    assert compiled.train(compiled.model).is_same_as(plain.train(plain.model))
    assert counters["stats"]["unique_graphs"] == 1


def test_nothing_breaks_the_graph():
    training = Training(METHODS["DSR"])
    assert torch._dynamo.explain(training.model)(training.x).graph_break_count == 0


def test_a_layer_may_go_down_to_one_weight_and_up_again():
    torch._dynamo.reset()
    counters.clear()
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = [torch.arange(36).view(6, 6) < n for n in (18, 18)]
    start = {"0.weight": masks[0], "1.weight": masks[1]}
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=0.5), storage="packed", start=start)
    compiled, x = torch.compile(model, backend="aot_eager", fullgraph=True), torch.randn(3, 6)
    state = sparse.state_dict()
    for first in (18, 35, 1, 20):
        positions = [torch.arange(36).view(6, 6).T.reshape(-1)[:n] for n in (first, 36 - first)]
        sparse.load_state_dict({**state, "counts": (first, 36 - first), "positions": torch.cat(positions).int()})
        torch.testing.assert_close(compiled(x), model(x))
        compiled(x).sum().backward()
        assert model.packed_values.grad.shape == (36,)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_those_of_a_dense_layer(name, kernels, backend):
    layer, shape = LAYERS[name]
    dense, packed = pair(layer, kernels)
    torch._dynamo.reset()
    compiled = torch.compile(packed, backend=backend, fullgraph=True)
    x = torch.randn(shape, dtype=torch.float64)
    (dx, biases), (dx_packed, biases_packed) = (gradients(m, x, lambda y: y.sin().sum()) for m in (dense, compiled))
    torch.testing.assert_close(dx_packed, dx)
    torch.testing.assert_close(biases_packed, biases)
    (slot,) = packed_slots(packed).values()
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(dense.weight.grad))


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_pictures_keep_their_format(kernels):
    _, packed = pair(LAYERS["conv 2d"][0], kernels)
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4, 8, 7).double().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = compiled(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sin().sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layer", [Tied, lambda: Scaled(6, 6)])
def test_layers_that_are_used_twice_or_read_their_weight(layer, backend):
    dense, packed = pair(layer, "sparse")
    torch._dynamo.reset()
    compiled = torch.compile(packed, backend=backend, fullgraph=True)
    x = torch.randn(4, 6).double()
    (dx, _), (dx_packed, _) = (gradients(m, x, lambda y: y.sin().sum()) for m in (dense, compiled))
    torch.testing.assert_close(dx_packed, dx)
    slot = next(iter(packed_slots(packed).values()))
    weight = next(p for p in dense.parameters() if p.ndim == 2)
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(weight.grad))


def test_growth_by_gradient_adds_up_all_uses_of_a_layer():
    trainings = []
    for backend in (None, "aot_eager"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        regrow.attach(model, optimizer, regrow.RigL(sparsity=0.5, period=1, until=100), storage="packed")
        forward = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
        for x in torch.randn(6, 4, 6):
            forward(x).sin().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        trainings.append(model.state_dict())
    assert all(torch.equal(trainings[0][name], trainings[1][name]) for name in trainings[0])


def test_no_dense_weight_is_kept_for_backward():
    _, packed = pair(LAYERS["linear"][0], "dense")
    kept = []
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda t: t):
        compiled(torch.randn(5, 12).double().requires_grad_())
    assert kept
    assert packed.weight.shape not in kept
    assert max(shape.numel() for shape in kept) <= 60


def test_values_that_changed_since_the_forward_pass_are_noticed():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    loss = compiled(torch.randn(3, 12).double().requires_grad_()).sum()
    with torch.no_grad():
        packed.packed_values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_freezing_another_precision_and_other_memory_are_followed():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    compiled = torch.compile(packed, backend="aot_eager")
    compiled(torch.randn(3, 12).double()).sum().backward()
    packed.zero_grad()
    packed.packed_values.requires_grad_(False)
    compiled(torch.randn(3, 12).double()).sum().backward()
    assert packed.packed_values.grad is None
    packed.packed_values.requires_grad_(True)
    packed.float()
    x = torch.randn(3, 12)
    compiled(x).sum().backward()
    assert packed.packed_values.grad.dtype == torch.float32
    packed.packed_values.data = packed.packed_values.data * 2
    assert torch.equal(compiled(x), packed(x))


def test_other_values_for_one_call():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    compiled = torch.compile(
        lambda own, x: torch.func.functional_call(packed, {"packed_values": own}, (x,)), backend="aot_eager"
    )
    x, own = torch.randn(3, 12).double(), packed.packed_values.detach().clone().mul_(2).requires_grad_()
    y = compiled(own, x)
    torch.testing.assert_close(y, torch.func.functional_call(packed, {"packed_values": own}, (x,)))
    y.sum().backward()
    assert own.grad is not None
    assert packed.packed_values.grad is None


def test_a_copy_has_values_of_its_own():
    training = Training(METHODS["DSR"])
    model, optimizer, sparse = copy.deepcopy((training.model, training.optimizer, training.sparse))
    compiled, x = torch.compile(model, backend="aot_eager", fullgraph=True), training.x
    assert torch.equal(compiled(x), training.model(x))
    compiled(x).sum().backward()
    optimizer.step()
    assert sparse.num_steps == 1
    assert training.model.packed_values.grad is None


def test_values_of_another_topology_are_refused():
    one, other = Training(METHODS["SET"]), Training(METHODS["SET"])
    compiled = torch.compile(one.model, backend="aot_eager", fullgraph=True)
    compiled(one.x)
    one.model.load_state_dict(other.train(other.model, 3).model.state_dict())
    with pytest.raises(RuntimeError, match="belong to another topology"):
        compiled(one.x)


def test_in_inference_mode():
    _, packed = pair(LAYERS["linear"][0], "sparse")
    compiled, x = torch.compile(packed, backend="aot_eager", fullgraph=True), torch.randn(3, 12).double()
    with torch.inference_mode():
        assert torch.equal(compiled(x), packed(x))


def test_operators_give_what_they_promised_also_where_autocast_is_on_in_the_backward_pass():
    """A compiled graph would read, and write, beyond the end of a tensor that is shorter than it was told."""
    training = Training(METHODS["SET"])
    slot = packed_slots(training.model)["1.up.weight"]
    values, stub, where = (tensor.detach() for tensor in slot.for_compiler())
    x, dy = torch.randn(8, 16), torch.randn(8, 32)
    y = torch.ops.regrow.packed_layer(x, values, stub, None, where, [32], False)
    with torch.autocast("cpu", torch.bfloat16):
        dx, dvalues = torch.ops.regrow.packed_layer_backward(dy, x, values, len(stub), where, [32], [True, True])
        weight = torch.ops.regrow.packed_weight(values, stub, where, [32, 16], False)
        of_weight = torch.ops.regrow.packed_weight_backward(torch.randn(32, 16), len(stub), where)
    assert {tensor.dtype for tensor in (y, dx, dvalues, weight, of_weight)} == {torch.float32}
    assert (y.shape, dx.shape, dvalues.shape) == (dy.shape, x.shape, (slot.places.count,))


def test_a_compiled_network_whose_backward_pass_is_under_autocast_learns_as_it_does_eagerly():
    def losses(compiles):
        training = Training(METHODS["SET"])
        forward = torch.compile(training.model) if compiles else training.model
        found = []
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(20):
                loss = cross_entropy(forward(training.x).float(), training.labels)
                loss.backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
                found.append(loss.item())
        return found

    eagerly, compiled = losses(False), losses(True)
    assert compiled[-1] < 0.8 * compiled[0]
    assert compiled == pytest.approx(eagerly, rel=0.1, abs=0.02)
