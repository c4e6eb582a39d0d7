"""Small files: what is saved comes back bit for bit, and takes little more than its values and their entropy."""

import json
import warnings
from functools import partial
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import regrow
from regrow.files.format import pick, read, write
from regrow.files.positions import entropy
from regrow.lab.models import build


def trained(method: regrow.Method, num_steps: int = 3) -> tuple[nn.Module, regrow.Sparsifier]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, method)
    for _ in range(num_steps):
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, sparse


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_holds_values_and_the_gaps_between_them(tmp_path: Path):
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[0.0, 1.5, 0.0, 0.0], [2.5, 0.0, 0.0, -3.0]])
    regrow.save(tmp_path / "m.safetensors", layer)
    stored = load_file(tmp_path / "m.safetensors")
    assert stored.keys() == {"values:float32", "positions"}
    assert stored["values:float32"].tolist() == [1.5, 2.5, -3.0]
    assert stored["positions"].tolist() == [0b10010010, 1]  # gaps of 1 2 2 0, in unary


def test_tensors_lie_one_after_the_other_and_the_metadata_says_which(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False))
    model[0].weight.data = torch.tensor([[0.0, 1.5, 0.0], [2.5, 0.0, 0.0]])
    model[1].weight.data = torch.tensor([[0.0, -3.0]])
    model[2].register_parameter("scale", nn.Parameter(torch.tensor([40.0])))
    model[0].bias.data, model[1].bias.data = torch.tensor([10.0, 11.0]), torch.tensor([20.0])
    model[2].running_mean.fill_(30.0)
    regrow.save(tmp_path / "m.safetensors", model)
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        told = {key: json.loads(file.metadata()[key]) for key in ("kinds", "modules")}
        stored = {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
    assert told["kinds"] == [
        {"weight": "values:float32", "bias": "dense:float32"},
        {
            "scale": "dense:float32",
            "running_mean": "buffers:float32",
            "running_var": "buffers:float32",
            "num_batches_tracked": "buffers:int64",
        },
    ]
    assert told["modules"] == {
        "0.": [0, [[2, 3], 2, 0, 1], [2]],  # two values, whose positions have parameter 0 and take a byte
        "1.": [0, [[1, 2], 1, 0, 1], [1]],
        "2.": [1, [1], [1], [1], []],
    }
    assert stored == {
        "values:float32": [1.5, 2.5, -3.0],
        "positions": [0b1001010, 0b110],
        "dense:float32": [10.0, 11.0, 20.0, 40.0],
        "buffers:float32": [30.0, 1.0],
        "buffers:int64": [0],
    }


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_a_trained_model_comes_back_bit_for_bit(name: str, tmp_path: Path):
    model, sparse = trained(regrow.METHODS[name](sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    assert same(regrow.load_tensors(tmp_path / "m.safetensors"), dict(model.state_dict()))
    if sparse.method.storage != "hashed":
        plain = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
        masks = regrow.load(tmp_path / "m.safetensors", plain)
        assert same(masks, sparse.masks())
        assert same(dict(plain.state_dict()), dict(model.state_dict()))


def test_training_can_go_on_from_a_file(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8, prune=10, period=1))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    fresh = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
    masks = regrow.load(tmp_path / "m.safetensors", fresh)
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    again = regrow.attach(fresh, optimizer, regrow.DSR(sparsity=0.8), start=masks)
    assert (again.budget, again.active) == (sparse.budget, sparse.budget)
    with pytest.raises(ValueError, match="load first, then attach"):
        regrow.load(tmp_path / "m.safetensors", fresh)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


NETWORKS = {"mlp": mlp, **{name: partial(build, name) for name in ("lenet_300_100", "wrn_28_2")}}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("sparsity", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_file_is_within_a_tenth_of_its_values_and_the_entropy_of_positions(
    network: str, sparsity: float, storage: str, tmp_path: Path
):
    model = NETWORKS[network]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=sparsity), storage=storage)
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    others = {name: p for name, p in NETWORKS[network]().state_dict().items() if name not in sparse.masks()}
    values = 4 * sparse.active + sum(tensor.nbytes for tensor in others.values())
    least = sum(entropy(prod(layer.shape), layer.active) for layer in sparse.layers) / 8
    told = regrow.describe(tmp_path / "m.safetensors")
    assert told.num_bytes < 1.1 * (values + least) + 2048
    assert told.num_bytes == values + told.num_position_bytes + told.num_header_bytes
    assert told.entropy_of_positions == pytest.approx(least)
    assert least < told.num_position_bytes < 1.03 * least


@pytest.mark.parametrize("name", ["RigL", "DSR"])
def test_layers_that_are_dense_or_nearly_take_no_room_for_positions(name: str, tmp_path: Path):
    model = build("lenet_300_100")
    method = regrow.METHODS[name](sparsity=0.8, distribution={"fc2.weight": 0.0, "fc3.weight": 0.02})
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        modules = json.loads(file.metadata()["modules"])
    (_, dense, _, num_dense), (_, nearly, _, num_nearly) = modules["fc2."][1], modules["fc3."][1]
    assert (dense, nearly) == (30_000, 980)
    assert num_dense <= 10
    assert num_nearly <= 25
    assert same(regrow.load_tensors(tmp_path / "m.safetensors"), dict(model.state_dict()))


def test_the_description_length_counts_numbers_and_positions(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    told = regrow.describe(tmp_path / "m.safetensors")
    others = sum(p.numel() for p in model.state_dict().values()) - 810
    assert told.description_length == -(-(32 * (162 + others) + 810) // 8)


def test_layers_are_told_in_the_order_of_the_network(tmp_path: Path):
    model = nn.Sequential(nn.Linear(9, 9, bias=False), nn.BatchNorm1d(9), nn.Linear(9, 9), nn.Linear(9, 9, bias=False))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.5))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    layers = regrow.describe(tmp_path / "m.safetensors").layers
    assert [layer.name for layer in layers] == ["0.weight", "2.weight", "3.weight"]


def test_values_can_be_stored_with_half_the_bits(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    regrow.save(tmp_path / "half.safetensors", model, sparse, values="bfloat16")
    back = regrow.load_tensors(tmp_path / "half.safetensors")["0.weight"]
    assert back.dtype == torch.float32
    assert torch.equal(back, model[0].weight.detach().bfloat16().float())
    with pytest.raises(ValueError, match="values must be one of"):
        regrow.save(tmp_path / "half.safetensors", model, sparse, values="int8")


def test_describe_reads_no_weights(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    told = regrow.describe(tmp_path / "m.safetensors")
    assert [(layer.name, layer.active) for layer in told.layers] == [(n.name, n.active) for n in sparse.layers]
    assert told.made_by["step"] == "3"
    assert told.made_by["method"].startswith("DSR(sparsity=0.8")
    assert told.num_bytes == (tmp_path / "m.safetensors").stat().st_size
    assert told.num_buffers == 30 + 30 + 1


def test_a_description_begins_with_lengths_and_wraps_what_made_it(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    length = (tmp_path / "m.safetensors").stat().st_size
    first, second, third, head, *layers = str(regrow.describe(tmp_path / "m.safetensors")).splitlines()
    assert first == f"{length:,} bytes, 320 numbers (of which 61 are buffers), step 3, torch {torch.__version__}"
    assert second.startswith("DSR(sparsity=0.8, period=100, ")
    assert third.startswith("    ")
    assert max(map(len, (second, third))) <= 100
    assert " ".join([second, third.strip()]) == repr(sparse.method)
    assert head.split() == ["layer", "shape", "weights", "active", "sparsity"]
    assert [line.split()[0] for line in layers] == ["0.weight", "3.weight", "total"]


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path):
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    model[1].weight = model[0].weight
    regrow.save(tmp_path / "m.safetensors", model)
    assert len(load_file(tmp_path / "m.safetensors")["dense:float32"]) == 30 * 30 + 2 * 30
    assert same(regrow.load_tensors(tmp_path / "m.safetensors"), dict(model.state_dict()))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.integers(0, 9),
    st.integers(0, 10**6),
)
def test_any_tensor_comes_back(tmp_path_factory, shape: list[int], dtype: torch.dtype, tenths: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator).to(dtype)
    tensor[torch.rand(shape, generator=generator) * 10 < tenths] = 0
    tensor.flatten()[:1] = -0.0
    module = nn.Module()
    module.weight = nn.Parameter(tensor)
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    regrow.save(path, module)
    back = regrow.load_tensors(path)["weight"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    assert torch.equal(torch.signbit(back), torch.signbit(tensor))


NAMES = st.lists(st.text("ab.", max_size=4), unique=True, max_size=8)
SPARSE = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
DENSE = st.sampled_from([torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64])


@settings(deadline=None, max_examples=100)
@given(NAMES, NAMES, st.data())
def test_any_tensors_under_any_names_come_back(tmp_path_factory, names: list[str], others: list[str], data):
    shapes = st.lists(st.integers(0, 4), max_size=3)
    sparse, masks = {}, {}
    for name in names:
        masks[name] = torch.rand(data.draw(shapes)) < 0.5
        sparse[name] = torch.randn(masks[name].shape).masked_fill(~masks[name], 0).to(data.draw(SPARSE))
    dense = {name: torch.randn(data.draw(shapes)).to(data.draw(DENSE)) for name in others if name not in names}
    aliases = {f"tied.{name}": name for name in [*sparse, *dense]}
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    parts = {name: pick(tensor, masks[name]) for name, tensor in sparse.items()}
    write(path, dense, parts, aliases=aliases, made_by={"step": "3"})
    content = read(path)
    expected = dense | sparse
    expected |= {name: expected[first] for name, first in aliases.items()}
    assert same(content.state, expected)
    assert all(content.state[name].dtype == tensor.dtype for name, tensor in expected.items())
    assert same(content.masks, masks)
    assert content.made_by["step"] == "3"


def test_what_comes_back_has_memory_of_its_own(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    state = regrow.load_tensors(tmp_path / "m.safetensors")
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in state.values())


def test_what_shares_memory_is_not_tied_if_it_is_seen_otherwise(tmp_path: Path):
    model = nn.Module()
    model.register_buffer("one", torch.rand(4, 4))
    model.register_buffer("transposed", model.one.T)
    model.register_buffer("bits", model.one.view(torch.int32))
    regrow.save(tmp_path / "model.safetensors", model)
    state = regrow.load_tensors(tmp_path / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dtypes_that_have_no_sparse_form_are_stored_as_they_are(dtype: torch.dtype, tmp_path: Path):
    model = nn.Module()
    model.register_buffer("scale", torch.zeros(100).to(dtype))
    regrow.save(tmp_path / "model.safetensors", model)
    assert regrow.load_tensors(tmp_path / "model.safetensors")["scale"].dtype == dtype


def test_dtypes_that_no_file_can_hold_are_refused_by_name(tmp_path: Path):
    model = nn.Module()
    model.register_buffer("phase", torch.ones(3, dtype=torch.complex128))
    with pytest.raises(TypeError, match=r"torch\.complex128"):
        regrow.save(tmp_path / "model.safetensors", model)
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    path = tmp_path / "m.safetensors"
    regrow.save(path, model, sparse)
    before = path.read_bytes()
    monkeypatch.setattr("regrow.files.atomic.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        regrow.save(path, model)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_sparsifier_of_another_model_is_refused(tmp_path: Path):
    _, sparse = trained(regrow.Static(sparsity=0.8))
    with pytest.raises(ValueError, match="do they belong together"):
        regrow.save(tmp_path / "m.safetensors", nn.Linear(3, 3), sparse)


OTHERS = {
    "a name the file has not": (nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7),
                                nn.Linear(7, 7)), "it has no 4.weight, which the model has; it has no 4.bias"),
    "a name the model has not": (nn.Sequential(nn.Linear(20, 30)), "the model has no 1.weight of its own.* and 4 more"),
    "another shape": (nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 8)),
                      r"3.weight has shape \(7, 30\), in the model \(8, 30\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_is_another_is_not_filled_by_half(name: str, tmp_path: Path):
    saved, sparse = trained(regrow.Static(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", saved, sparse)
    model, message = OTHERS[name]
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=rf"m\.safetensors cannot be loaded: .*{message}"):
        regrow.load(tmp_path / "m.safetensors", model)
    assert same(dict(model.state_dict()), before)


def test_a_model_that_does_not_know_its_shapes_yet_gets_them_from_the_file(tmp_path: Path):
    saved, sparse = trained(regrow.Static(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", saved, sparse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lazy modules are new
        lazy = nn.Sequential(nn.LazyLinear(30), nn.BatchNorm1d(30), nn.ReLU(), nn.LazyLinear(7))
    regrow.load(tmp_path / "m.safetensors", lazy)
    assert same(dict(lazy.state_dict()), dict(saved.state_dict()))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_checkpoint_of_torch_is_told_as_one(is_new: bool, tmp_path: Path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=is_new)
    with pytest.raises(ValueError, match=r"m\.pt .* looks like a checkpoint of torch; use torch\.load"):
        regrow.load(tmp_path / "m.pt", nn.Linear(2, 2))


def test_a_file_of_another_program_is_told_as_one(tmp_path: Path):
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"not written by regrow\.save; use safetensors\.torch\.load_file"):
        regrow.load(tmp_path / "m.safetensors", nn.Linear(2, 2))


def averaged(model: nn.Module) -> nn.Module:
    """The model with weights as an average over topologies leaves them."""
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    with torch.no_grad():
        average.module[0].weight[:, :2] += 0.5
    return average.module


def test_weights_that_are_not_those_of_the_masks_are_refused_and_counted(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    other, another = trained(regrow.RigL(sparsity=0.8, period=1))
    path, mask = tmp_path / "m.safetensors", sparse.masks()["0.weight"]
    num_outside = 60 - int(mask[:, :2].sum())
    with pytest.raises(ValueError, match=rf"0\.weight is not 0 at {num_outside} of the places where the sparsifier"):
        regrow.save(path, averaged(model), sparse)
    with pytest.raises(ValueError, match=r"weight is not 0 at \d+ of the places"):
        regrow.save(path, other, sparse)
    assert not list(tmp_path.iterdir())
    regrow.save(path, averaged(model))
    assert same(regrow.load_tensors(path), averaged(model).state_dict())
    regrow.save(path, other, another)


def test_an_average_within_the_masks_is_saved_as_it_is(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    average = torch.optim.swa_utils.AveragedModel(model).module
    with torch.no_grad():
        average[0].weight *= 0.5
    regrow.save(tmp_path / "m.safetensors", average, sparse)
    assert same(regrow.load_tensors(tmp_path / "m.safetensors"), average.state_dict())
    assert regrow.describe(tmp_path / "m.safetensors").layers[0].active == sparse.layers[0].active


def test_not_a_number_where_nothing_is_active_is_refused_too(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    place = tuple((~sparse.masks()["3.weight"]).nonzero()[0])
    with torch.no_grad():
        model[3].weight[place] = float("nan")
    with pytest.raises(ValueError, match=r"3\.weight is not 0 at 1 of the places"):
        regrow.save(tmp_path / "m.safetensors", model, sparse)


def test_the_same_model_is_the_same_bytes(tmp_path):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.SET(sparsity=0.5))
    for name in ("one", "other"):
        regrow.save(tmp_path / name, model, sparse)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
