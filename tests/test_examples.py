"""The examples run, and show what they say they show."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regrow

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(monkeypatch, capsys, name: str, *arguments: str) -> tuple[dict[str, object], str]:
    """What an example leaves behind, and what it prints."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name)), capsys.readouterr().out


def test_a_network_of_which_only_the_active_weights_exist_learns_and_rewires(monkeypatch, capsys):
    arguments = ("--quick", "--width", "1000", "--steps", "80")
    space, printed = run(monkeypatch, capsys, "bigger_than_memory.py", *arguments)
    # 784 x 1000 + 1000 x 1000 + 1000 x 10 = 1,794,000 positions, of which 2 % are 35,880
    assert "35,880 weights in 1,794,000 positions, 2 rewirings" in printed
    assert "weights, gradients and momentum, dense: 0.02 GB" in printed
    assert [len(parameter) for parameter in space["model"].parameters()] == [35_880, 1000, 1000, 1000, 1000, 10, 10]
    assert sum(space["sparse"].history[0].grown.values()) > 100
    assert space["accuracy"](1000) > 0.6  # by chance 0.1


def test_a_network_is_trained_written_and_used_from_its_file(monkeypatch, capsys, tmp_path):
    space, printed = run(monkeypatch, capsys, "deploy.py", "--quick", "--out", str(tmp_path / "small.safetensors"))
    # 784 x 64 + 64 x 64 + 64 x 10 = 54,912 positions, of which 20 % are 10,982
    assert "10,982 of 54,912 weights" in printed
    packed, dense, trained = space["packed"], space["dense"], space["trained"]
    assert [len(parameter) for parameter in packed.parameters()] == [10_982, 64, 64, 10]
    assert [len(parameter) for parameter in dense.parameters()] == [64, 64, 64, 64, 10, 10]
    assert trained > 0.6  # by chance 0.1
    assert space["accuracy"](packed) == pytest.approx(trained, abs=0.01)
    assert printed.count(f"{space['accuracy'](packed):.2%} of the test images") >= 1
    assert (tmp_path / "small.safetensors").stat().st_size < 4 * 54_912 / 3


def test_a_script_of_ones_own_that_was_stopped_goes_on_to_the_same_bits(monkeypatch, capsys, tmp_path):
    quick = ("--quick", "--epochs", "2", "--out")
    whole, _ = run(monkeypatch, capsys, "own_script.py", *quick, str(tmp_path / "whole"))
    run(monkeypatch, capsys, "own_script.py", *quick, str(tmp_path / "stopped"), "--stop-after", "1")
    again, printed = run(monkeypatch, capsys, "own_script.py", *quick, str(tmp_path / "stopped"))
    assert "goes on after epoch 1" in printed
    assert again["sparse"].active == again["sparse"].budget == 1_914  # a tenth of what is in the blocks
    assert again["sparse"].history == whole["sparse"].history
    one, other = (regrow.load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert again["accuracy"]() > 0.2  # by chance 0.1


def test_ray_tune_searches_sparsity_and_learning_rate(tmp_path):
    pytest.importorskip("ray.tune")
    words = [sys.executable, str(EXAMPLES / "ray_tune.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^sparsity (\S+): (\S+) weights, (\S+)% with .* after \d of 3", done.stdout, re.MULTILINE)
    assert [(sparsity, weights) for sparsity, weights, _ in found] == [("0.9", "26,620"), ("0.98", "5,324")]
    assert float(found[0][2]) > 60  # by chance 10
    to_the_end = re.search(r"^(\d) of 4 trials were trained to the end", done.stdout, re.MULTILINE)
    assert to_the_end is not None
    assert int(to_the_end[1]) >= 1  # which ones is a matter of who was first, as ASHA is asynchronous


def test_a_circuit_is_what_a_prediction_goes_by_and_other_weights_are_not(monkeypatch, capsys, tmp_path):
    page = tmp_path / "circuit.html"
    space, printed = run(monkeypatch, capsys, "circuit.py", "--quick", "--out", str(page))
    whole, drawn, others = space["told"].values()  # the quotes that are told right, and the letters
    assert whole[0] > 0.95  # by chance 0.5
    assert drawn[0] < 0.7
    assert others[0] > 0.9
    assert drawn[1] > whole[1] - 0.1
    assert "exempt: gradients and optimizer state, which are those of all 13,792 places" in printed
    assert len(space["drawn"]) == 16
    assert page.read_text().count('stroke="#1565c0"') + page.read_text().count('stroke="#c62828"') == 16


def test_a_walk_along_the_command_line_interrupts_a_sweep_goes_on_and_ends_with_a_file(tmp_path):
    command = tmp_path / "bin" / "regrow"  # as it is installed
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regrow "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    words = ["sh", str(EXAMPLES / "sweep.sh"), "--quick"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    at = [done.stdout.index(part) for part in ("tolerance ", "the paper's", "3 runs, 0 done", "exit code 130")]
    assert at == sorted(at)
    assert re.search(r"3 runs, [12] done, about 10 s", done.stdout[at[-1] :])
    assert re.search(r"^[12] runs? stopped or not begun", done.stderr, re.MULTILINE)
    assert re.search(r"^[12] runs? already done", done.stderr, re.MULTILINE)
    walk = tmp_path / "walk"
    assert len(list(walk.glob("runs/*/summary.json"))) == 3
    assert "<!doctype html" in (walk / "report" / "index.html").read_text()
    weight = torch.load(walk / "dsr.pt")["fc1.weight"]
    assert 0 < weight.count_nonzero() < 0.1 * weight.numel()
