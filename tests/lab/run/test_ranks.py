"""Processes that torchrun starts train one run together, from the same batches, and go on with it when killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import assert_same_result, small
from typer.testing import CliRunner

from regrow.lab import data
from regrow.lab.cli.main import app
from regrow.lab.run.folder import RunFolder, read_run
from regrow.lab.run.loop import Options, train
from regrow.lab.run.ranks import Ranks

SETTINGS = ["--data", "synthetic", "-m", "DSR", "-s", "0.9", "--epochs", "6", "batch_size=200", "method.period=4"]
RUN = small(epochs=6)


@contextmanager
def together(root: Path, *more: str, num_ranks: int = 2, restarts: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The run in processes that torchrun starts, which saves after every step."""
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    words = ["-m", "regrow", "train", *SETTINGS, "--device", "cpu", "--save-every", "0", "--runs", str(root), *more]
    process = subprocess.Popen(
        [*starter, "--max-restarts", str(restarts), "--monitor-interval", "0.1", *words],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_epochs(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    while len(RunFolder(folder).read_table("metrics.csv")) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks that nobody interrupted."""
    root = tmp_path_factory.mktemp("whole")
    with together(root) as process:
        said, trouble = process.communicate(timeout=120)
    assert process.returncode == 0, trouble
    assert said.splitlines() == [str(root / RUN.id)]  # and not once for each rank
    assert trouble.count("done: ") == 1
    return root / RUN.id


def test_two_ranks_keep_the_budget_and_learn(whole: Path):
    run = read_run(whole)
    assert run.summary is not None
    assert run.summary["accuracy"] > 60  # ten classes
    assert run.summary["provenance"]["ranks"] == 2
    assert {row["active"] for row in run.metrics} == {26_620}
    assert [row["step"] for row in run.history][:4] == [4, 8, 12, 16]
    assert not (whole / "checkpoint.pt").exists()


def test_a_rank_that_is_killed_leaves_a_run_that_goes_on_to_the_same_bits(whole: Path, tmp_path: Path):
    """torchrun starts all of them again."""
    folder = tmp_path / RUN.id
    with together(tmp_path, restarts=1) as process:
        wait_for_epochs(process, folder, 1)
        victim = children(process.pid)[-1]
        os.kill(victim, signal.SIGKILL)
        trouble = process.communicate(timeout=120)[1]
    assert process.returncode == 0, trouble
    assert_same_result(whole, folder)


def test_when_all_are_killed_another_number_goes_on_with_the_same_topology(whole: Path, tmp_path: Path):
    folder = tmp_path / RUN.id
    with together(tmp_path) as process:
        wait_for_epochs(process, folder, 1)
        everybody = (*children(process.pid), process.pid)
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
        while any(map(is_alive, everybody)):
            time.sleep(0.01)
    killed_at = torch.load(folder / "checkpoint.pt")["step"]
    assert 10 <= killed_at < 60
    train(RUN, tmp_path, Options(threads=1))
    two, then_one = read_run(whole), read_run(folder)
    assert [row for row in then_one.history if row["step"] <= killed_at] == [
        row for row in two.history if row["step"] <= killed_at
    ]
    assert {sum(row.values()) - row["epoch"] for row in then_one.layers} == {26_620}
    assert then_one.summary is not None
    assert then_one.summary["provenance"]["ranks"] == "2, then 1"
    assert then_one.summary["accuracy"] > 60


def test_a_polite_kill_saves_on_all_ranks_at_the_same_step(tmp_path: Path):
    folder = tmp_path / small(epochs=600).id  # which is not over before it is told
    with together(tmp_path, "--epochs", "600", "--save-every", "1000") as process:
        wait_for_epochs(process, folder, 1)
        process.terminate()
        trouble = process.communicate(timeout=60)[1]
    assert "stopped at step" in trouble
    assert torch.load(folder / "checkpoint.pt")["step"] >= 10


def test_shards_are_trained_as_copies_are_and_saved_whole(whole: Path, tmp_path: Path):
    with together(tmp_path, "--shard") as process:
        trouble = process.communicate(timeout=120)[1]
    assert process.returncode == 0, trouble
    copies, shards = read_run(whole), read_run(tmp_path / RUN.id)
    assert shards.summary is not None
    assert shards.summary["provenance"]["sharded"]
    assert shards.history[0] == copies.history[0]  # later ones may differ by what is rounded
    assert {row["active"] for row in shards.metrics} == {26_620}
    assert load_file(tmp_path / RUN.id / "final_weights.safetensors")["fc1.weight"].shape == (300, 784)


# One rank's share


@pytest.mark.parametrize("name", ["synthetic", "synthetic_colour"])
def test_ranks_share_the_batches_of_one(name: str):
    """Order and augmentation belong to the image, not to the rank."""
    images = data.load(name, device="cpu")
    whole = list(images.training_batches(1, 0, 400, device=torch.device("cpu")))
    parts = [list(images.training_batches(1, 0, 400, device=torch.device("cpu"), rank=r, num_ranks=2)) for r in (0, 1)]
    for (inputs, targets), *shares in zip(whole, *parts, strict=True):
        for rank, (own_inputs, own_targets) in enumerate(shares):
            assert torch.equal(own_inputs, inputs[rank::2])
            assert torch.equal(own_targets, targets[rank::2])


def test_ranks_test_on_everything_once():
    images = data.load("synthetic", device="cpu")
    seen = [
        [len(targets) for _, targets in images.evaluation_batches(166, device=torch.device("cpu"), rank=r, num_ranks=3)]
        for r in range(3)
    ]
    assert seen == [[56, 56, 56, 1], [55, 55, 55, 1], [55, 55, 55, 0]]  # 500, in as many batches each


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    with pytest.raises(ValueError, match="batch_size 100 cannot be shared equally among 3 processes"):
        Ranks(count=3).check_batch_size(100)


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_what_starts_processes_itself_is_not_started_by_torchrun(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some")
    told = CliRunner().invoke(app, [command, "experiments/demo.toml"])
    assert told.exit_code == 1
    assert "leave torchrun to `regrow train`" in " ".join(told.stderr.split())


def test_shards_are_for_several_processes():
    told = CliRunner().invoke(app, ["train", "--shard", "--data", "synthetic"])
    assert told.exit_code == 1
    assert "torchrun --nproc-per-node 2" in told.stderr


def test_compiling_is_for_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some")
    told = CliRunner().invoke(app, ["train", "--compile", "--device", "cpu"])
    assert "leave it out under torchrun" in told.stderr
