"""Exports: the same numbers in every format, tied weights tied, and a sentence where something is not possible."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

import regrow
from regrow.files.export import as_csr

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the packages of regrow[onnx]",
)


def save_small(path: Path) -> nn.Module:
    """A convolution with four active weights, one of them 0, and a dense bias."""
    model = nn.Sequential(nn.Conv2d(2, 2, (1, 2)))
    model[0].weight.data = torch.tensor([0.0, 1.5, 0.0, 0.0, 2.5, 0.0, 0.0, -3.0]).view(2, 2, 1, 2)
    mask = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1], dtype=torch.bool).view(2, 2, 1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=0.5), start={"0.weight": mask})
    regrow.save(path, model, sparse)
    return model


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_dense_is_a_plain_safetensors_file(tmp_path: Path):
    model = save_small(tmp_path / "m.safetensors")
    regrow.export(tmp_path / "m.safetensors", tmp_path / "dense.safetensors")
    assert same(load_file(tmp_path / "dense.safetensors"), dict(model.state_dict()))


def test_a_state_dict_loads_without_unpickling_anything(tmp_path: Path):
    model = save_small(tmp_path / "m.safetensors")
    regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert same(loaded, dict(model.state_dict()))


def test_csr_keeps_every_active_weight_and_the_shape(tmp_path: Path):
    model = save_small(tmp_path / "m.safetensors")
    regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt", "csr")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    csr = loaded["0.weight"]
    assert csr.crow_indices().tolist() == [0, 1, 4]  # one active weight in the first output, three in the second
    assert csr.col_indices().tolist() == [1, 0, 2, 3]
    assert csr.values().tolist() == [1.5, 2.5, 0.0, -3.0]  # the active 0 too
    assert torch.equal(csr.to_dense().view(loaded["shape:0.weight"]), model[0].weight)
    assert torch.equal(loaded["0.bias"], model[0].bias)


def test_the_small_form_comes_back_as_it_was(tmp_path: Path):
    save_small(tmp_path / "m.safetensors")
    regrow.export(tmp_path / "m.safetensors", tmp_path / "again.safetensors", "sparse")
    first, second = (regrow.describe(tmp_path / name) for name in ("m.safetensors", "again.safetensors"))
    assert first == second
    plain = nn.Sequential(nn.Conv2d(2, 2, (1, 2)))
    assert regrow.load(tmp_path / "again.safetensors", plain)["0.weight"].flatten().tolist() == [
        *(False, True, False, False),
        *(True, False, True, True),
    ]


@pytest.mark.parametrize("format", ["dense", "state_dict", "csr", "sparse"])
def test_tied_weights_have_both_names_in_every_format(format: str, tmp_path: Path):
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[:20] = 0
    regrow.save(tmp_path / "m.safetensors", model)
    regrow.export(tmp_path / "m.safetensors", tmp_path / "out", format)
    if format in ("state_dict", "csr"):
        loaded = torch.load(tmp_path / "out", weights_only=True)
    else:
        loaded = (load_file if format == "dense" else regrow.load_tensors)(tmp_path / "out")
    for name in ("0.weight", "1.weight"):
        assert torch.equal(loaded[name].to_dense(), model[0].weight)
    assert loaded["0.weight"].is_sparse_csr == loaded["1.weight"].is_sparse_csr == (format == "csr")


def test_vectors_that_are_sparse_stay_dense_in_csr(tmp_path: Path):
    layer = nn.Linear(3, 40)
    nn.init.zeros_(layer.bias)
    regrow.save(tmp_path / "m.safetensors", layer)
    assert [info.name for info in regrow.describe(tmp_path / "m.safetensors").layers] == ["bias"]
    regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt", "csr")
    assert torch.load(tmp_path / "m.pt", weights_only=True)["bias"].tolist() == [0.0] * 40


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 10), st.integers(0, 10**6))
def test_csr_computes_what_the_dense_weight_does(shape: list[int], tenths: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=generator) * 10 < tenths
    weight = torch.randn(shape, generator=generator).where(mask, 0)
    csr = as_csr(weight, mask)
    x = torch.randn(weight[0].numel(), 3, generator=generator)
    assert len(csr.values()) == int(mask.count_nonzero())
    assert torch.equal(csr.to_dense(), weight.flatten(1))
    torch.testing.assert_close(csr @ x, weight.flatten(1) @ x)


def test_the_description_length_is_told_beside_the_length(tmp_path: Path):
    save_small(tmp_path / "m.safetensors")
    told = regrow.describe(tmp_path / "m.safetensors")
    assert (told.num_parameters, told.num_positions) == (4 + 2, 8)
    assert told.description_length == (6 * 32 + 8) // 8
    assert told.num_position_bytes == 2  # 8 positions, and one more bit
    assert told.num_bytes == told.num_header_bytes + 6 * 4 + 2  # float32 throughout: only names are added


@pytest.mark.parametrize(
    ("out", "format", "message"),
    [
        ("m.pt", "crs", "did you mean 'csr'"),
        ("m.bin", None, "Say a format: dense, state_dict, csr, sparse, onnx"),
        ("m.onnx", None, "regrow.export_onnx"),
        ("m.safetensors", "dense", "written over itself"),
        ("nowhere/m.pt", None, "there is no folder"),
        ("", "dense", "is a folder"),
    ],
)
def test_what_cannot_be_written_is_said_first(out: str, format: str | None, message: str, tmp_path: Path):
    save_small(tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    with pytest.raises(ValueError, match=message):
        regrow.export(tmp_path / "m.safetensors", tmp_path / out, format)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert (tmp_path / "m.safetensors").read_bytes() == before


def test_shared_values_are_refused(tmp_path: Path):
    model = nn.Sequential(nn.Linear(20, 30))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Hashed(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    with pytest.raises(ValueError, match=r"detach\(\) its sparsifier"):
        regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt")


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*m\.safetensors"):
        regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt")
    torch.save({}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"m\.safetensors .* looks like a checkpoint of torch; use torch\.load"):
        regrow.export(tmp_path / "m.safetensors", tmp_path / "m.pt")


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


def run_onnx(path: Path, *inputs: Tensor) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, feed)]


@needs_onnx
@pytest.mark.parametrize(
    ("method", "storage"),
    [(regrow.DSR(sparsity=0.8), "dense"), (regrow.DSR(sparsity=0.8), "packed"), (regrow.Hashed(sparsity=0.8), "dense")],
)
def test_onnx_computes_the_outputs_of_the_model_for_any_batch(method: regrow.Method, storage: str, tmp_path: Path):
    model = convolutional()
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, storage=storage)
    model(torch.randn(16, 3, 8, 8))  # so that the norms have statistics of their own
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    difference = regrow.export_onnx(tmp_path / "m.onnx", model, torch.randn(1, 3, 8, 8))
    assert difference is not None
    assert difference <= 1e-5
    assert same(dict(model.state_dict()), before)
    assert model.training
    sparse.detach()
    model.eval()
    for num in (1, 7):
        x = torch.randn(num, 3, 8, 8)
        torch.testing.assert_close(run_onnx(tmp_path / "m.onnx", x)[0], model(x).detach(), atol=1e-5, rtol=1e-5)


class TwoInTwoOut(nn.Module):
    """A model with several inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": self.layer(left + right), "best": self.layer(left).argmax(1)}


@needs_onnx
def test_onnx_of_a_model_with_several_inputs_and_outputs(tmp_path: Path):
    torch.manual_seed(0)
    model, left, right = TwoInTwoOut(), torch.randn(5, 4), torch.randn(5, 4)
    assert regrow.export_onnx(tmp_path / "m.onnx", model, (left, right)) is not None
    outputs = run_onnx(tmp_path / "m.onnx", left, right)
    expected = model(left, right)
    torch.testing.assert_close(outputs[0], expected["sum"].detach(), atol=1e-5, rtol=1e-5)
    assert torch.equal(outputs[1], expected["best"])


class OneByOne(nn.Module):
    """Unrolls over the batch, whose size it thereby fixes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[i] * i for i in range(x.shape[0])])


@needs_onnx
def test_onnx_of_a_model_that_fixes_its_batch_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot take batches of any size"):
        regrow.export_onnx(tmp_path / "m.onnx", OneByOne(), torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


EXAMPLES = {
    "a shape": ((1, 784), TypeError, r"first axis is the batch, e\.g\. torch\.randn\(1, 784\).* got \(1, 784\)"),
    "nothing": (None, TypeError, "got None"),
    "no tensors": ((), TypeError, r"got \(\)"),
    "numbers of numpy": (torch.ones(1, 784).numpy(), TypeError, "must be a tensor"),
    "no batch": (torch.ones(784), ValueError, r"takes an example_input of shape \(784,\), and not two of them along"),
    "too long": (torch.ones(1, 785), ValueError, r"does not take an example_input of shape \(1, 785\): mat1 and mat2"),
    "too many": (
        (torch.ones(1, 784),) * 2,
        ValueError,
        r"shape \(1, 784\), \(1, 784\): .*2 positional arguments but 3",
    ),
}


@needs_onnx
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_wrong_with_an_example_is_said_in_one_sentence(name: str, tmp_path: Path):
    example, kind, message = EXAMPLES[name]
    with pytest.raises(kind, match=message) as caught:
        regrow.export_onnx(tmp_path / "m.onnx", nn.Linear(784, 10), example)
    assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


class Random(nn.Module):
    """Not the same twice."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@needs_onnx
def test_onnx_that_computes_something_else_is_not_written(tmp_path: Path):
    with pytest.raises(ValueError, match="same outputs at every call"):
        regrow.export_onnx(tmp_path / "m.onnx", Random(), torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_the_line_that_installs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r'needs onnx, which is not installed; run pip install "regrow\[onnx\]"'):
        regrow.export_onnx(tmp_path / "m.onnx", nn.Linear(2, 2), torch.randn(1, 2))
