"""The documents run: every Python block, in order, and the README's example with every method."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regrow
from regrow.lab.cli import app
from regrow.lab.config import make_config
from regrow.lab.train import Options, train

ROOT = Path(__file__).parent.parent
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def python_blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    space: dict[str, object] = {}
    for block in python_blocks("README.md"):
        exec(block, space)
    assert "DSR, step 300, budget 23,820" in capsys.readouterr().out
    assert len(space["sparse"].history) == 3


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_swapping_the_method_is_the_only_change(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = python_blocks("README.md")[0].replace("range(300)", "range(3)")
    assert "regrow.DSR(" in example
    exec(example.replace("regrow.DSR(", f"regrow.{name}("), {})
    assert capsys.readouterr().out.startswith(f"{name}, step 3")


def test_the_readme_lists_every_method():
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(regrow.METHODS)


def test_a_method_in_one_file_is_found_and_conforms():
    exec(python_blocks("CONTRIBUTING.md")[0], {"__name__": "halving"})
    try:
        regrow.testing.check_method(regrow.Halving(sparsity=0.8))
        with pytest.raises(TypeError, match="did you mean 'share'"):
            regrow.Halving(sparsity=0.8, shar=0.1)
    finally:
        del regrow.METHODS["Halving"]


def commands(document: str) -> list[str]:
    """What a document tells a user to type."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("regrow ")]


@pytest.mark.parametrize("line", commands("docs/lab.md"))
def test_the_commands_of_the_lab_page_work(line, tmp_path, monkeypatch):
    """On the synthetic set and for one epoch, so that it takes seconds."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    if words[0] == "data":
        words = ["data"]
    elif words[0] == "train":
        words += ["data=synthetic", "epochs=1", "batch_size=500", "--runs", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def test_the_page_about_files_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """Its run is a short one on the synthetic set, under the name that the page has for it."""
    monkeypatch.chdir(tmp_path)
    config = make_config(
        {"data": "synthetic", "epochs": 1, "batch_size": 500, "method": "DSR", "sparsity": 0.99},
    )
    train(config, tmp_path / "runs", Options(threads=1))
    page = (ROOT / "docs/files.md").read_text()
    [name] = set(re.findall(r"runs/(\S+)", page))
    (tmp_path / "runs" / config.id).rename(tmp_path / "runs" / name)
    space: dict[str, object] = {}
    for language, block in re.findall(r"```(python onnx|python|console)\n(.*?)```", page, re.DOTALL):
        if not HAS_ONNX and (language == "python onnx" or ".onnx" in block):
            continue
        if language != "console":
            exec(block, space)
            continue
        for line in block.splitlines():
            result = CliRunner().invoke(app, shlex.split(line)[1:])
            assert result.exit_code == 0, result.output
    made = {path.name for path in tmp_path.iterdir()}
    assert made >= {"dense.safetensors", "model.pt", "matrices.pt", "lenet.safetensors", "lenet.pt"}
    assert not HAS_ONNX or made >= {"lenet.onnx", "model.onnx"}
