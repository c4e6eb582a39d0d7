"""One run, from its config to its finished folder; stopped, killed, damaged and resumed."""

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_runs import assert_same_result, small, stop_after
from torch import nn

from regrow.lab.config.component import component
from regrow.lab.exporting import export_run
from regrow.lab.models import Inputs, Model, Shape
from regrow.lab.run.folder import BadRun, InUse, RunFolder, read_run
from regrow.lab.run.loop import Options, Stopped, train
from regrow.lab.run.state import NotFinite
from regrow.methods.method import METHODS


def test_a_finished_folder_tells_the_whole_story(run_small: Callable[..., Path]):
    folder = run_small()
    run = read_run(folder)
    assert run.summary is not None
    assert [row["epoch"] for row in run.metrics] == [1, 2]
    assert [row["epoch"] for row in run.layers] == [0, 1, 2]
    assert run.summary["accuracy"] == run.metrics[-1]["test_accuracy"]
    budget = round(0.1 * 266_200)
    assert all(sum(row.values()) - row["epoch"] == budget for row in run.layers)
    assert run.summary["size"] == {
        "dense": 820,
        "active": budget,
        "positions": 266_200,
        "parameters": budget + 820,
        "bits": 32 * (budget + 820) + 266_200,
    }
    assert run.summary["flops"] == 2 * budget
    assert [row["step"] for row in run.history] == [4, 8, 12, 16]
    assert {"torch", "device", "revision", "finished"} <= run.summary["provenance"].keys()
    assert not (folder / "checkpoint.pt").exists()


def test_initial_weights_are_kept_as_drawn_before_masking(run_small: Callable[..., Path]):
    folder = run_small()
    weights, topology = (
        load_file(folder / "initial_weights.safetensors"),
        load_file(folder / "initial_topology.safetensors"),
    )
    assert all((weights[name] != 0).float().mean() > 0.999 for name in topology)
    assert sum(int(mask.sum()) for mask in topology.values()) == round(0.1 * 266_200)


def test_a_network_learns_and_a_finished_run_is_left_alone(run_small: Callable[..., Path]):
    folder = run_small(method={"name": "Dense"}, epochs=3)
    before = (folder / "summary.json").stat().st_mtime_ns
    run = read_run(folder)
    assert run.summary is not None
    assert run.summary["accuracy"] > 60  # ten classes
    run_small(method={"name": "Dense"}, epochs=3)
    assert (folder / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_run_stopped_anywhere_ends_with_the_same_bits(method: str, tmp_path: Path):
    config = small(method={"name": method})
    if method == "Gradual":
        for root in (tmp_path / "whole", tmp_path / "parts"):
            train(small(method={"name": "Dense"}), root, Options(threads=1))
    train(config, tmp_path / "whole", Options(threads=1))
    for stop_at in (1, 7, 10, 15):  # within an epoch, at its end, and in the next
        steps = iter(range(1, 1000))
        options = Options(threads=1, should_stop=lambda steps=steps, stop_at=stop_at: next(steps) == stop_at)
        try:
            train(config, tmp_path / "parts", options)
        except Stopped:
            assert (tmp_path / "parts" / config.id / "checkpoint.pt").exists()
    train(config, tmp_path / "parts", Options(threads=1))
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


def test_pictures_in_folders_can_be_trained_on_and_stopped_anywhere(tmp_path: Path):
    for part, count in (("train", 4), ("val", 2)):
        for name, shade in (("dark", 40), ("light", 200)):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
            for i in range(count):
                picture = Image.new("RGB", (40, 30), (shade, shade + i, shade))
                picture.save(tmp_path / "pictures" / part / name / f"{i}.png")
    config = small(model="wrn_10_1", data=f"folder:{tmp_path / 'pictures'}", batch_size=2, epochs=1)
    train(config, tmp_path / "whole", Options(threads=1))
    stop_after(2, config, tmp_path / "parts")
    train(config, tmp_path / "parts", Options(threads=1))
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


def test_a_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path: Path):
    """Really killed, with SIGKILL, at random moments of its training; REGROW_KILLS sets how often."""
    config = small(epochs=20, batch_size=100)
    train(config, tmp_path / "whole", Options(threads=1))
    command = [
        *(sys.executable, "-m", "regrow", "train", "--runs", str(tmp_path / "killed")),
        *("--threads", "1", "--save-every", "0.02", "--data", "synthetic", "--epochs", "20"),
        *("--method", "DSR", "--sparsity", "0.9", "method.period=4", "batch_size=100"),
    ]
    folder = RunFolder(tmp_path / "killed" / config.id)
    moments = random.Random(0)
    num_kills, num_wanted = 0, int(os.environ.get("REGROW_KILLS", "3"))
    while num_kills < num_wanted:
        if folder.is_finished:
            assert_same_result(tmp_path / "whole" / config.id, folder.path)
            shutil.rmtree(folder.path)
        before = saved_at(folder)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if num_kills % 4:  # mostly while it trains, now and then while it starts
            while process.poll() is None and saved_at(folder) == before:
                time.sleep(0.002)
        time.sleep(moments.uniform(0, 1))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            num_kills += 1
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert_same_result(tmp_path / "whole" / config.id, folder.path)
    assert not list(folder.path.glob(".*"))  # half-written files are gone


def saved_at(folder: RunFolder) -> int:
    try:
        return folder.file("checkpoint.pt").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_ctrl_c_saves_and_stops(tmp_path: Path):
    command = [
        *(sys.executable, "-m", "regrow", "train", "--runs", str(tmp_path), "--threads", "1", "--data", "synthetic"),
        *("--epochs", "500", "--method", "DSR", "--sparsity", "0.9"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.glob("*/metrics.csv")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped at step" in messages
    assert list(tmp_path.glob("*/checkpoint.pt"))


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path):
    config = small(optimizer={"lr": {0: 0.1, 50: 1e30}}, written_for=100, method={"name": "Static"}, epochs=4)
    with pytest.raises(NotFinite, match="lower the learning rate"):
        train(config, tmp_path, Options(threads=1, save_every=0))
    folder = RunFolder(tmp_path / config.id)
    saved = torch.load(folder.file("checkpoint.pt"), weights_only=True)
    assert all(value.isfinite().all() for value in saved["model"].values())
    assert not folder.is_finished


def test_only_half_written_files_are_cleared_away(run_small: Callable[..., Path]):
    folder = run_small()
    (folder / "summary.json").unlink()
    (folder / ".notes").write_text("mine")
    (folder / ".checkpoint.pt.123").write_text("half")
    (folder / ".ipynb_checkpoints").mkdir()
    run_small()
    assert sorted(path.name for path in folder.glob(".*")) == [".ipynb_checkpoints", ".notes"]


def test_a_second_process_on_the_same_folder_stops(tmp_path: Path):
    config = small()
    folder = RunFolder(tmp_path / config.id)
    with folder.lock(), pytest.raises(BadRun, match="another process is training"):
        train(config, tmp_path, Options())


def test_a_run_that_goes_on_elsewhere_says_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = small()
    for step, revision in ((5, "one"), (6, "two"), (7, "two")):
        monkeypatch.setenv("REGROW_REVISION", revision)
        stop_after(step, config, tmp_path)
    train(config, tmp_path, Options(threads=1))
    summary = RunFolder(tmp_path / config.id).summary()
    assert summary is not None
    assert summary["provenance"]["revision"] == "one, then two"
    assert summary["provenance"]["threads"] == 1


def test_the_threads_of_a_run_are_its_own(tmp_path: Path):
    before = torch.get_num_threads()
    stop_after(5, small(), tmp_path)
    torch.set_num_threads(2)
    try:
        train(small(), tmp_path, Options())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_that_is_refused_leaves_no_run_behind(tmp_path: Path):
    with pytest.raises(ValueError, match="batch_size"):
        train(small(batch_size=9999), tmp_path, Options(threads=1))
    assert list(tmp_path.iterdir()) == []


def test_nor_does_one_whose_data_or_memory_is_not_there(tmp_path: Path):
    with pytest.raises(ValueError, match="nowhere"):
        train(small(data=f"folder:{tmp_path / 'nowhere'}"), tmp_path, Options(threads=1))
    with pytest.raises(
        ValueError, match=r"the weights of wrn_28_9000 .* would take 1[0-9,]+ GiB, and this machine has"
    ):
        train(small(model="wrn_28_9000"), tmp_path, Options(threads=1))
    assert list(tmp_path.iterdir()) == []


class OneLayer(nn.Sequential):
    def sparse_layers(self) -> list[str]:
        return ["1.weight"]


class NeedsValues(Model):
    """Looks at what it has drawn, which cannot be done where tensors have only shapes."""

    name: ClassVar[str] = "needs_values"
    usual: ClassVar[Shape] = Shape((1, 28, 28), 10)

    def build(self, inputs: Inputs, width: float = 1.0) -> nn.Module:
        layer = nn.Linear(784, 10)
        layer.weight.data /= float(layer.weight.detach().std())
        return OneLayer(nn.Flatten(), layer)


def test_a_network_that_cannot_be_built_without_values_trains_and_is_exported(tmp_path: Path):
    component(NeedsValues)
    config = small(model="needs_values", optimizer={"lr": 0.1})
    train(config, tmp_path, Options(threads=1))
    export_run(tmp_path / config.id, tmp_path / "dense.pt")
    assert torch.load(tmp_path / "dense.pt")["1.weight"].count_nonzero() <= 784  # of 7840


def test_a_lock_that_was_removed_with_its_folder_is_not_held_by_who_comes_next(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        waiting = folder.file("lock").open("a")
    with folder.lock():
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another file, of the same name
        with pytest.raises(InUse, match="another process is training"), folder.lock():
            pass
        folder.file("notes").write_text("mine")
    waiting.close()
    assert folder.file("lock").exists()
