"""`regrow export` and `regrow describe`, as a user types them."""

import importlib.util
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import regrow
from safetensors.torch import load_file
from torch import nn

import regrow as library
from regrow.lab.models import build

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the packages of regrow[onnx]",
)
RunSmall = Callable[..., Path]


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[0.0, 1.5, 0.0, 0.0], [2.5, 0.0, 0.0, -3.0]])
    library.save(tmp_path / "m.safetensors", layer)
    return tmp_path / "m.safetensors"


def test_describe_tells_the_description_length(small_file: Path):
    code, said = regrow(f"describe {small_file}")
    assert code == 0
    assert "weight  2x4          8       3    0.6250" in said
    assert "description length: 13 bytes" in said  # 3 values of 4 bytes, and 8 bits
    ratio = small_file.stat().st_size / 13
    assert f"the file is {ratio:.4f} times as long" in said
    assert "and 2 are positions, whose entropy is 1" in said  # 9 bits, and one of 56 ways to choose 3 of 8


def test_a_file_is_exported_by_the_ending_or_the_format(small_file: Path):
    out = small_file.with_name("m.pt")
    code, said = regrow(f"export {small_file} {out}")
    assert code == 0
    assert str(out) in said
    assert torch.load(out, weights_only=True)["weight"].tolist() == [[0.0, 1.5, 0.0, 0.0], [2.5, 0.0, 0.0, -3.0]]
    assert regrow(f"export {small_file} {out} -f csr")[0] == 0
    assert torch.load(out, weights_only=True)["weight"].crow_indices().tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export {file} {folder}/m.pt --format zip", "there is no format 'zip'; there are: dense"),
        ("export {file} {folder}/m.xyz", "Say a format: dense, state_dict, csr, sparse, onnx"),
        ("export {file} {folder}/m.onnx", "give the folder of a run"),
        ("export {folder}/nothing.safetensors {folder}/m.pt", "nothing.safetensors; give a file written by"),
        ("export {folder} {folder}/m.pt", "has no config.json"),
        ("export {file} {folder}/nowhere/m.pt", "there is no folder"),
        ("describe {folder}/nothing.safetensors", "there is no file"),
        ("describe {folder}", "is a folder; `regrow show"),
    ],
)
def test_bad_input_gets_one_sentence(line: str, message: str, small_file: Path):
    code, said = regrow(line.format(file=small_file, folder=small_file.parent))
    assert code == 1
    assert message in said
    assert [path.name for path in small_file.parent.iterdir()] == ["m.safetensors"]


def test_a_run_becomes_a_small_file_and_that_the_same_dense_one(run_small: RunSmall, tmp_path: Path):
    run = run_small()
    assert regrow(f"export {run} {tmp_path}/small.safetensors --format sparse")[0] == 0
    assert regrow(f"export {tmp_path}/small.safetensors {tmp_path}/dense.safetensors")[0] == 0
    assert regrow(f"export {run} {tmp_path}/direct.safetensors")[0] == 0
    expected = load_file(run / "final_weights.safetensors")
    for name in ("dense", "direct"):
        found = load_file(tmp_path / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    masks = library.load(tmp_path / "small.safetensors", build("lenet_300_100"))
    topology = load_file(run / "final_topology.safetensors")
    assert masks.keys() == topology.keys()
    assert all(torch.equal(masks[key], topology[key]) for key in topology)
    told = library.describe(tmp_path / "small.safetensors")
    assert [layer.name for layer in told.layers] == ["fc1.weight", "fc2.weight", "fc3.weight"]
    network = build("lenet_300_100")
    assert told.num_buffers == sum(buffer.numel() for buffer in network.buffers())
    num_sparse = 0.9 * sum(layer.weight.numel() for layer in (network.fc1, network.fc2, network.fc3))
    assert told.num_parameters - told.num_buffers == sum(p.numel() for p in network.parameters()) - num_sparse
    made_by = told.made_by
    assert made_by["method"].startswith("DSR(sparsity=0.9, period=4")
    assert made_by["step"] == "20"


def test_a_dense_run_has_no_masks_in_its_small_file(run_small: RunSmall, tmp_path: Path):
    run = run_small(method={"name": "Dense"})
    assert regrow(f"export {run} {tmp_path}/small.safetensors -f sparse")[0] == 0
    assert library.describe(tmp_path / "small.safetensors").layers == ()


def test_shared_values_of_a_run_are_written_out(run_small: RunSmall, tmp_path: Path):
    run = run_small(method={"name": "Hashed"}, seed=3)
    assert regrow(f"export {run} {tmp_path}/m.pt")[0] == 0
    weight = torch.load(tmp_path / "m.pt", weights_only=True)["fc1.weight"]
    values = load_file(run / "final_weights.safetensors")["fc1.weight"]
    assert weight.shape == (300, 784)
    assert set(weight.abs().unique().tolist()) <= set(values.abs().tolist())
    code, said = regrow(f"export {run} {tmp_path}/small.safetensors -f sparse")
    assert code == 1
    assert "it has no sparse form" in said


def test_a_run_that_is_not_finished_is_refused(run_small: RunSmall, tmp_path: Path):
    run = run_small()
    (run / "summary.json").unlink()
    for ending in ("pt", "onnx"):
        code, said = regrow(f"export {run} {tmp_path}/m.{ending}")
        assert code == 1
        assert "is not finished" in said


@needs_onnx
@pytest.mark.parametrize("method", ["DSR", "Hashed"])
def test_a_run_becomes_an_onnx_file_as_accurate_as_its_summary_says(method: str, run_small: RunSmall, tmp_path: Path):
    import onnxruntime

    from regrow.lab.data import load
    from regrow.lab.run.folder import read_run

    run = run_small(method={"name": method})
    code, said = regrow(f"export {run} {tmp_path}/m.onnx")
    assert code == 0
    assert "onnxruntime gives the outputs of the network" in said
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    [(images, labels)] = load("synthetic", device="cpu").evaluation_batches(500, device=torch.device("cpu"))
    [logits] = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    summary = read_run(run).summary
    assert summary is not None
    assert 100 * (logits.argmax(1) == labels.numpy()).mean() == pytest.approx(summary["accuracy"])


def test_missing_packages_are_told_before_anything_is_done(
    run_small: RunSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_small()
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, said = regrow(f"export {run} {tmp_path}/m.onnx")
    assert code == 1
    assert 'pip install "regrow[onnx]"' in said


def test_a_full_disk_is_a_sentence_and_the_old_file_stays(tmp_path: Path):
    source, out = tmp_path / "m.safetensors", tmp_path / "m.pt"
    library.save(source, nn.Linear(100, 100))
    out.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        code, said = regrow(f"export {source} {out}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    assert "m.pt was not written and is as it was" in said
    assert out.read_text() == "old"
