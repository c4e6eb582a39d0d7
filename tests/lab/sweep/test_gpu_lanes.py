"""Captured steps and lanes on a real GPU."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from small_runs import assert_same_result, small

from regrow.lab.config import Config
from regrow.lab.run import steps
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, Stopped, train
from regrow.lab.run.steps import CapturedSteps
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.sweep import sweep
from regrow.methods.method import METHODS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GPU = Options(device="cuda")


def run_lanes(configs: list[Config], root: Path, num_lanes: int, *, compiles: bool = False) -> None:
    with Board(Console(file=io.StringIO())) as board:
        outcome = sweep(configs, root, replace(GPU, compiles=compiles), num_lanes, board)
    assert not outcome.failed


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_captured_run_computes_what_an_eager_one_does(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = small(method={"name": method}, start={"run": None, "weights": "fresh"})
    train(config, tmp_path / "captured", GPU)
    monkeypatch.setattr(steps, "_WARM_UP", 10**9)  # never captured
    train(config, tmp_path / "eager", GPU)
    assert_same_result(tmp_path / "captured" / config.id, tmp_path / "eager" / config.id)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_captured_run_that_was_stopped_ends_with_the_same_bits(method: str, tmp_path: Path):
    config = small(method={"name": method}, start={"run": None, "weights": "fresh"})
    train(config, tmp_path / "whole", GPU)
    for stop_at in (2, 7, 10):
        count = iter(range(1, 1000))
        options = Options(device="cuda", should_stop=lambda count=count, stop_at=stop_at: next(count) == stop_at)
        try:
            train(config, tmp_path / "parts", options)
        except Stopped:
            continue
    train(config, tmp_path / "parts", GPU)
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


@pytest.mark.parametrize("model", ["lenet_300_100", "wrn_10_1"])
def test_a_lane_gives_the_same_result_whatever_runs_beside_it(model: str, tmp_path: Path):
    data = "synthetic" if model == "lenet_300_100" else "synthetic_colour"
    configs = [small(model=model, data=data, seed=seed, epochs=3) for seed in range(4)]
    run_lanes(configs, tmp_path / "together", 4)
    run_lanes(configs[:1], tmp_path / "alone", 1)
    assert_same_result(tmp_path / "together" / configs[0].id, tmp_path / "alone" / configs[0].id)


def test_a_branch_ends_as_if_it_had_trained_alone(tmp_path: Path):
    configs = [small(epochs=6, method={"name": "DSR", "until": until}) for until in (50, 90)]
    run_lanes(configs, tmp_path / "together", 2)
    run_lanes(configs[:1], tmp_path / "alone", 1)
    assert_same_result(tmp_path / "together" / configs[0].id, tmp_path / "alone" / configs[0].id)
    summary = RunFolder(tmp_path / "together" / configs[0].id).summary()
    assert summary is not None
    assert "epochs 1 to 3" in summary["provenance"]["beginning"]


def test_a_lane_that_fails_ends_alone(tmp_path: Path):
    good, bad = small(), small(optimizer={"lr": 1e30}, seed=1)
    with Board(Console(file=io.StringIO())) as board:
        outcome = sweep([bad, good], tmp_path, GPU, 2, board)
    assert outcome.done == [good.id]
    assert "lower the learning rate" in outcome.failed[bad.id]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # by torch's own compiler
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # float32 is what was asked for
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_run_that_was_stopped_ends_with_the_same_bits(precision: str, tmp_path: Path):
    config = small(model="wrn_10_1", data="synthetic_colour", precision=precision)
    compiled = replace(GPU, compiles=True)
    train(config, tmp_path / "whole", compiled)
    count = iter(range(1, 1000))
    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", replace(compiled, should_stop=lambda: next(count) == 7))
    train(config, tmp_path / "parts", GPU)  # goes on compiled, as it began
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_a_compiled_lane_gives_the_same_result_whatever_runs_beside_it(tmp_path: Path):
    configs = [
        small(model="wrn_10_1", data="synthetic_colour", precision="bfloat16", seed=seed, epochs=3) for seed in range(8)
    ]
    run_lanes(configs, tmp_path / "together", 8, compiles=True)
    run_lanes(configs[:1], tmp_path / "alone", 1, compiles=True)
    assert_same_result(tmp_path / "together" / configs[0].id, tmp_path / "alone" / configs[0].id)


def test_the_number_of_lanes_follows_the_memory(tmp_path: Path):
    configs = [small(seed=seed, epochs=30) for seed in range(3)]
    most = 0

    class Watched(Board):
        open = 0

        def begin(self, run: str) -> None:
            nonlocal most
            self.open += 1
            most = max(most, self.open)
            super().begin(run)

        def end(self, run: str, *how: Any) -> None:
            self.open -= 1
            super().end(run, *how)

    with Watched(Console(file=io.StringIO())) as board:
        sweep(configs, tmp_path, GPU, None, board)
    assert most == 3


def test_steps_are_captured_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    graphs = []
    capture = CapturedSteps._capture
    monkeypatch.setattr(CapturedSteps, "_capture", lambda self: graphs.append(1) or capture(self))
    train(small(), tmp_path, GPU)
    assert graphs == [1]
