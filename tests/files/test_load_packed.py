"""A model that is loaded packed, to be used: it computes what the dense one does, and is never dense."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regrow
from regrow.size import count_flops, size_of
from regrow.storage.packed.layers import packed_slots


def saved(path: Path, model: nn.Module, sparsity: float = 0.8, **options) -> nn.Module:
    """The model, sparse and in evaluation, after it was written."""
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.DSR(sparsity=sparsity), **options)
    regrow.save(path, model, sparse)
    sparse.detach()
    return model.eval()


def loaded(path: Path, make, on_meta: bool = True, **options) -> nn.Module:
    with torch.device("meta" if on_meta else "cpu"):
        model = make()
    assert regrow.load(path, model, **{"storage": "packed", **options}) == {}
    return model


@pytest.fixture
def path(tmp_path):
    torch.manual_seed(0)
    return tmp_path / "m.safetensors"


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 50), nn.ReLU(), nn.Linear(50, 9)
    )


IMAGES = (3, 6, 6)


def trained_a_little(model: nn.Module) -> nn.Module:
    """Norms have statistics of their own."""
    model(torch.randn(16, *IMAGES))
    return model


# What it is


def test_the_active_weights_of_two_layers(path):
    """The values of both lie in one vector, column after column."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[0.0, 1.5, 0.0], [2.5, 0.0, -1.0]])
    model[0].bias.data = torch.tensor([10.0, 20.0])
    model[1].weight.data = torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    regrow.save(path, model)
    use = loaded(path, lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False)))
    assert use.packed_values.tolist() == [2.5, 1.5, -1.0, 0.5]
    assert {name: own.tolist() for name, own in use.named_parameters() if "packed" not in name} == {"0.bias": [10, 20]}
    assert use(torch.tensor([[1.0, 10.0, 100.0]])).tolist() == [[0.5 * (2.5 - 100 + 20), 0.0]]


@pytest.mark.parametrize("on_meta", [True, False])
def test_it_computes_what_the_dense_model_does_and_is_ready_to(path, on_meta):
    dense = saved(path, trained_a_little(network()))
    use = loaded(path, network, on_meta)
    assert not use.training
    assert not any(own.requires_grad for own in use.parameters())
    assert not any(own.is_meta for own in use.state_dict().values())
    assert set(packed_slots(use)) == {"0.weight", "4.weight", "6.weight"}
    for batch in (1, 5):
        x = torch.randn(batch, *IMAGES)
        torch.testing.assert_close(use(x), dense(x).detach())
        assert use(x).grad_fn is None


KINDS = {
    "conv 1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv 3d": (lambda: nn.Conv3d(2, 4, 3, padding=1), (2, 2, 4, 5, 4)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    "channels last": (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), (2, 4, 8, 7)),
    "double": (lambda: nn.Linear(12, 7).double(), (5, 12)),
}


@pytest.mark.parametrize("name", KINDS)
def test_all_kinds_of_layers(name, path):
    make, shape = KINDS[name]
    dense = saved(path, make(), sparsity=0.6)
    use = loaded(path, make)
    x = torch.randn(shape, dtype=use.packed_values.dtype)
    with torch.no_grad():
        torch.testing.assert_close(use(x), dense(x))


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, given=(), named=None):
        made = function(*given, **(named or {}))
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor) and not leaf.is_meta]
        self.numbers = max([self.numbers, *(tensor.untyped_storage().nbytes() // 4 for tensor in tensors)])
        return made


def test_nothing_is_ever_dense(path):
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, 256, 3), nn.Flatten(), nn.Linear(256, 256))

    num_positions = 256 * 144 + 256 * 256
    saved(path, make(), sparsity=0.99)
    with Largest() as seen, torch.no_grad():
        use = loaded(path, make)
        for batch in (1, 3):
            use(torch.randn(batch, 16, 3, 3))
    assert seen.numbers < 256 * 144 / 4  # the file, as it is mapped into memory
    with Largest() as seen, torch.no_grad():
        use[2].weight.sum()
    assert seen.numbers == 256 * 256
    assert use.packed_values.numel() == round(0.01 * num_positions)


def test_ten_thousand_million_positions(path):
    def make() -> nn.Module:
        return nn.Linear(100_000, 100_000)

    with torch.device("meta"):
        model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=1 - 1e-6), storage="packed")
    regrow.save(path, model, sparse)
    use, x = loaded(path, make), torch.randn(2, 100_000)
    assert use.packed_values.numel() == 10_000
    with torch.no_grad():
        assert torch.equal(use(x), model(x))
        assert torch.equal(use(x[:1]), model(x)[:1])


def test_no_compiler_of_torch_is_brought_into_memory(path):
    saved(path, nn.Linear(20, 30))
    code = f"""
import sys, torch, regrow
model = torch.nn.Linear(20, 30)
regrow.load({str(path)!r}, model, storage="packed")
model(torch.ones(1, 20))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class Mixed(nn.Module):
    """Ties, a table, a recurrent layer, and a parameter of no kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 12), nn.Linear(12, 11, bias=False)
        self.head.weight = self.table.weight
        self.memory = nn.GRU(12, 12, batch_first=True)
        self.one, self.other = nn.Linear(12, 12), nn.Linear(12, 12)
        self.other.weight = self.one.weight
        self.scale = nn.Parameter(torch.randn(12, 12))
        self.register_buffer("shift", torch.randn(12))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.memory(self.table(tokens))[0] @ self.scale + self.shift
        return self.head(self.other(self.one(x)))


def test_what_cannot_be_packed_is_dense_and_what_is_tied_stays_tied(path):
    dense = saved(path, Mixed(), 0.5, layers=["table.weight", "memory.weight_ih_l0", "one.weight", "scale"])
    for on_meta in (True, False):
        use = loaded(path, Mixed, on_meta)
        assert set(packed_slots(use)) == {"one.weight", "other.weight"}
        assert use.packed_values.numel() == int(dense.one.weight.count_nonzero())
        assert use.head.weight is use.table.weight
        tokens = torch.randint(11, (2, 5))
        torch.testing.assert_close(use(tokens), dense(tokens).detach())


def test_a_file_that_ties_fills_a_model_that_does_not(path):
    dense = saved(path, Mixed(), 0.5, layers=["one.weight"])

    def untied() -> nn.Module:
        model = Mixed()
        model.other = nn.Linear(12, 12)
        return model

    use = loaded(path, untied)
    assert use.packed_values.numel() == 2 * int(dense.one.weight.count_nonzero())
    tokens = torch.randint(11, (2, 5))
    torch.testing.assert_close(use(tokens), dense(tokens).detach())


def test_layers_of_several_dtypes_have_a_vector_each(path):
    def make() -> nn.Module:
        return nn.ModuleList([nn.Linear(20, 20), nn.Linear(20, 20).double(), nn.Linear(20, 20).bfloat16()])

    dense = saved(path, make())
    use = loaded(path, make)
    vectors = {name: own.dtype for name, own in use.named_parameters() if "packed" in name}
    assert vectors == {
        "packed_values": torch.float32, "packed_values_1": torch.float64, "packed_values_2": torch.bfloat16,
    }  # fmt: skip
    for one, other in zip(use, dense, strict=True):
        x = torch.randn(3, 20).to(other.weight.dtype)
        torch.testing.assert_close(one(x), other(x).detach())


# How it computes


@pytest.mark.parametrize("kernels", ["sparse", "dense", "auto"])
def test_kernels_can_be_chosen(path, kernels):
    dense = saved(path, network())
    use = loaded(path, network, storage=regrow.Packed(kernels=kernels))
    x = torch.randn(4, *IMAGES)
    torch.testing.assert_close(use(x), dense(x).detach())
    choices = packed_slots(use)["0.weight"].choices
    assert choices.forced == (None if kernels == "auto" else kernels)
    assert len(choices.made) == (3 if kernels == "auto" else 0)


def test_the_bits_are_those_of_the_packed_model_that_was_trained(path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    storage = regrow.Packed(kernels="sparse")
    sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.8, period=2), storage=storage)
    for _ in range(4):
        model(torch.randn(8, *IMAGES)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    regrow.save(path, model, sparse)
    use = loaded(path, network)
    x = torch.randn(4, *IMAGES)
    assert torch.equal(use(x), model.eval()(x))
    assert size_of(use, {}) == size_of(model, {})
    assert count_flops(use, IMAGES, {}) == count_flops(model, IMAGES, {})


def test_the_gradient_of_an_input(path):
    dense = saved(path, network())
    use = loaded(path, network)
    x = torch.randn(4, *IMAGES)
    gradients = []
    for model in (dense, use):
        own = x.clone().requires_grad_()
        model(own).square().sum().backward()
        gradients.append(own.grad)
    torch.testing.assert_close(*gradients)


# How long it lives


def test_copies_pickles_and_states(path):
    saved(path, network())
    use, x = loaded(path, network), torch.randn(4, *IMAGES)
    expected = use(x)
    for twin in (copy.deepcopy(use), pickle.loads(pickle.dumps(use))):
        assert torch.equal(twin(x), expected)
        twin.packed_values.data.zero_()
        twin.load_state_dict(use.state_dict())
        assert torch.equal(twin(x), expected)
    other = saved(path, network())
    assert regrow.load(path, use) == {}
    torch.testing.assert_close(use(x), other(x).detach())


def test_a_state_of_another_topology_is_refused_until_the_file_is_loaded(path):
    saved(path, network())
    use, x = loaded(path, network), torch.randn(4, *IMAGES)
    state = loaded(path, network).state_dict()
    state["packed_values_topology"] += 1
    use.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"belong to another topology .* regrow\.load"):
        use(x)
    regrow.load(path, use)
    assert use(x).shape == (4, 9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision(path, dtype):
    dense = saved(path, network())
    use, x = loaded(path, network).to(dtype), torch.randn(4, *IMAGES).to(dtype)
    torch.testing.assert_close(use(x), dense.to(dtype)(x).detach())


def test_it_is_saved_as_the_file_it_came_from(path):
    saved(path, network())
    use, again = loaded(path, network), path.with_name("again")
    regrow.save(again, use)
    first, second = regrow.load_tensors(path), regrow.load_tensors(again)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {*regrow.describe(path).layers} <= {*regrow.describe(again).layers}


def test_half_the_bits_in_the_file_are_all_in_memory(path):
    model = nn.Linear(20, 30)
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.8))
    regrow.save(path, model, sparse, values="bfloat16")
    use = loaded(path, lambda: nn.Linear(20, 30))
    assert use.packed_values.dtype == torch.float32
    assert torch.equal(use.weight, model.weight.bfloat16().float())


def test_a_compiled_model_computes_the_same(path):
    saved(path, network())
    use, x = loaded(path, network), torch.randn(4, *IMAGES)
    compiled = torch.compile(use, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), use(x))


def test_a_layer_without_any_weight_gives_its_bias(path):
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    model[0].weight.data[:, 1:] = 0
    model[1].weight.data.zero_()
    regrow.save(path, model)
    use = loaded(path, lambda: nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)))
    for batch in (1, 3):
        assert torch.equal(use(torch.randn(batch, 20)), model[1].bias.expand(batch, 5))


# What is refused


def attached() -> nn.Module:
    model = network()
    regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.8))
    return model


def lazy() -> nn.Module:
    model = network()
    model[4] = nn.LazyLinear(50)
    return model


REFUSED = {
    "attached": (attached, "packed", "the model is attached to a sparsifier; detach"),
    "no shape yet": (lazy, "packed", r"4\.weight has no shape yet; run one batch"),
    "another model": (lambda: nn.Linear(3, 3), "packed", "cannot be loaded: it has no weight, which the model has"),
    "another storage": (network, "hashed", r'storage must be "dense", "packed" or such as regrow\.Packed'),
    "first values": (network, regrow.Packed(init=lambda *_: 0), "init draws first weights, and a file has weights"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(name, path):
    saved(path, network())
    make, storage, message = REFUSED[name]
    model = make()
    before = {key: type(module) for key, module in model.named_modules()}
    with pytest.raises(ValueError, match=message):
        regrow.load(path, model, storage=storage)
    assert {key: type(module) for key, module in model.named_modules()} == before
    assert model.training


def test_a_model_that_is_packed_already(path):
    saved(path, network())
    use = loaded(path, network)
    with pytest.raises(ValueError, match="packed already; leave out storage"):
        regrow.load(path, use, storage="packed")
    with pytest.raises(ValueError, match="packed already"):
        regrow.attach(use, torch.optim.SGD(use.parameters(), lr=0.1), regrow.Static(sparsity=0.8))
    saved(path, network(), sparsity=0.9)
    with pytest.raises(ValueError, match="build the model anew"):
        regrow.load(path, use)


def test_a_storage_that_is_none(path):
    saved(path, network())
    with pytest.raises(TypeError, match="storage must be"):
        regrow.load(path, network(), storage=3)


def test_a_file_with_nothing_to_pack(path):
    saved(path, nn.GRU(12, 12), layers=["weight_ih_l0"])
    with pytest.raises(ValueError, match="no sparse layer that can be packed; leave out storage"):
        regrow.load(path, nn.GRU(12, 12), storage="packed")


# Models on the meta device, dense


class Shifted(nn.Linear):
    """With numbers that are in no state."""

    def __init__(self) -> None:
        super().__init__(20, 30)
        self.register_buffer("table", torch.arange(30.0), persistent=False)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_what_is_on_the_meta_device_and_in_no_file_is_refused(path, storage):
    saved(path, Shifted())
    with torch.device("meta"):
        model = Shifted()
    with pytest.raises(ValueError, match="table is on the meta device and in no file; make it real before loading"):
        regrow.load(path, model, storage=storage)
    model.table = torch.arange(30.0)
    regrow.load(path, model, storage=storage)
    assert not any(own.is_meta for own in (*model.parameters(), *model.buffers()))


def test_a_dense_model_on_the_meta_device_becomes_real(path):
    dense = saved(path, Mixed(), 0.5, layers=["one.weight"])
    with torch.device("meta"):
        model = Mixed()
    masks = regrow.load(path, model)
    assert masks.keys() == {"one.weight"}
    assert model.other.weight is model.one.weight
    assert all(own.requires_grad for own in model.parameters())
    tokens = torch.randint(11, (2, 5))
    assert torch.equal(model.eval()(tokens), dense(tokens))
