"""Many runs side by side: order, failures, interruptions."""

import fcntl
import io
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import assert_same_result, small
from typer.testing import CliRunner

from regrow.lab.cli.main import app
from regrow.lab.config import Config, make_config
from regrow.lab.config.experiment import parse_override
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, train
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.lanes import train_in_lanes
from regrow.lab.sweep.outcome import Ending, Outcome, result_in
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.signals import stop_on_signals
from regrow.lab.sweep.sweep import sweep


def run_all(configs: list[Config], root: Path, jobs: int = 2) -> tuple[Outcome, str]:
    said = io.StringIO()
    with Board(Console(file=said, width=200)) as board:
        outcome = sweep(configs, root, Options(threads=1), jobs, board)
    return outcome, said.getvalue()


def test_runs_that_take_turns_in_lanes_end_as_if_alone(tmp_path: Path):
    """On a CPU lanes have no streams and nothing is captured, but the turns are the same."""
    configs = [small(seed=0), small(seed=1, epochs=3), small(method={"name": "SET"}), small(optimizer={"lr": 1e30})]
    with Board(Console(file=io.StringIO())) as board:
        backlog = Backlog(configs, tmp_path / "lanes", board)
        train_in_lanes(backlog, Options(threads=1), 2, lambda: False)
    outcome = backlog.close()
    assert sorted(outcome.done) == sorted(config.id for config in configs[:3])
    assert "lower the learning rate" in outcome.failed[configs[3].id]
    for config in configs[:3]:
        train(config, tmp_path / "alone", Options(threads=1))
        assert_same_result(tmp_path / "lanes" / config.id, tmp_path / "alone" / config.id)


def test_lanes_that_are_interrupted_save_and_say_what_is_left(tmp_path: Path):
    turns = iter(range(1000))
    with Board(Console(file=io.StringIO())) as board:
        backlog = Backlog([small(seed=seed) for seed in range(3)], tmp_path, board)
        train_in_lanes(backlog, Options(threads=1), 2, lambda: next(turns) > 20)
    outcome = backlog.close()
    assert len(outcome.stopped) == 3
    assert len(list(tmp_path.glob("*/checkpoint.pt"))) == 2


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path: Path):
    good, bad = small(), small(optimizer={"lr": 1e30}, seed=1)
    child = small(
        method={"name": "Static"},
        seed=1,
        start={"topology": "final", "run": {"method": {"name": "DSR", "period": 4}, "optimizer": {"lr": 1e30}}},
    )
    outcome, said = run_all([child, bad, good], tmp_path)
    assert outcome.done == [good.id]
    assert "lower the learning rate" in outcome.failed[bad.id]
    assert f"because {bad.id} failed" in outcome.failed[child.id]
    assert f"{good.id}  done" in said
    assert f"{bad.id}  failed" in said


def test_a_run_that_was_too_short_to_rewire_is_told_so(tmp_path: Path):
    configs = [small(epochs=1, method={"period": period}) for period in (4, 100)]
    for config in configs:
        train(config, tmp_path, Options(threads=1))
    rewired, still = (str(result_in(RunFolder(tmp_path / config.id))) for config in configs)
    assert "rewire" not in rewired
    assert still.endswith("; DSR was not due to rewire in its 10 steps, see method.period")
    static = small(epochs=1, method={"name": "Static"})
    train(static, tmp_path, Options(threads=1))
    assert "rewire" not in str(result_in(RunFolder(tmp_path / static.id)))


def test_a_run_starts_when_its_parent_is_finished_and_finished_ones_are_skipped(tmp_path: Path):
    compressed = small(method={"name": "Gradual"})
    outcome, _ = run_all([compressed], tmp_path)
    assert [RunFolder(tmp_path / run).config().method_name for run in outcome.done] == ["Dense", "Gradual"]
    again, _ = run_all([compressed], tmp_path)
    assert again.done == []
    assert len(again.skipped) == 2


def test_what_waits_for_a_run_that_was_stopped_waits_no_longer(tmp_path: Path):
    compressed = small(method={"name": "Gradual"}, epochs=2000)
    board = Board(Console(file=io.StringIO()))
    backlog = Backlog([compressed], tmp_path, board)
    dense = backlog.take()
    assert dense is not None
    assert backlog.take() is None
    backlog.ended(dense.id, Ending("stopped", "stopped at step 3 of 4"))
    assert not backlog
    assert backlog.close().stopped == [dense.id, compressed.id]


def test_a_run_waits_for_the_one_it_names_by_id(tmp_path: Path):
    dsr = small()
    child = small(method={"name": "Static"}, start={"topology": "final", "run": dsr.id})
    outcome, _ = run_all([child, dsr], tmp_path)
    assert outcome.done == [dsr.id, child.id]


def test_the_folder_of_another_run_does_not_count_as_finished(tmp_path: Path):
    one, other = small(), small(seed=1)
    run_all([one], tmp_path)
    shutil.copytree(tmp_path / one.id, tmp_path / other.id)
    outcome, _ = run_all([other], tmp_path)
    assert "belongs to another run" in outcome.failed[other.id]


def wait_for_metrics(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "metrics.csv").exists():
        assert time.monotonic() < deadline, f"nothing is trained in {folder}"
        time.sleep(0.05)


def test_a_sweep_interrupted_before_its_runs_began_counts_them_as_stopped(tmp_path: Path):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    outcome, said = run_all([small(epochs=2000), small(epochs=2000, seed=1)], tmp_path)
    assert len(outcome.stopped) == 2
    assert not outcome.failed
    assert "stopped" in said


def test_a_worker_that_is_killed_counts_as_failed(tmp_path: Path):
    config = small(epochs=2000)
    other = small()

    def kill() -> None:
        wait_for_metrics(tmp_path / config.id)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        workers = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(int(workers[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome, _ = run_all([config, other], tmp_path, jobs=1)
    killer.join()
    assert outcome.failed == {config.id: "died (exit code -9)"}
    assert outcome.done == [other.id]


def test_an_interrupted_sweep_saves_what_runs_and_says_what_is_left(tmp_path: Path):
    first, second = small(epochs=2000), small()

    def interrupt() -> None:
        wait_for_metrics(tmp_path / first.id)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    outcome, said = run_all([first, second], tmp_path, jobs=1)
    assert sorted(outcome.stopped) == sorted([first.id, second.id])
    assert "stopped at step" in said
    assert (tmp_path / first.id / "checkpoint.pt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_sweep_loses_nothing(number: signal.Signals, tmp_path: Path):
    experiment, runs = tmp_path / "two.toml", tmp_path / "runs"
    experiment.write_text(
        'data = "synthetic"\nepochs = 4000\nmethod = "DSR"\nsparsity = 0.9\ngrid.seed = [0, 1]\nbatch_size = 50\n'
    )
    command = [sys.executable, "-m", "regrow", "sweep", str(experiment), "--jobs", "2", "--runs", str(runs)]
    process = subprocess.Popen([*command, "--save-every", "1000"], start_new_session=True, stderr=subprocess.PIPE)
    while len(list(runs.glob("*/metrics.csv"))) < 2:  # written when an epoch is over, not earlier
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.count("stopped at step") == 2
    assert len(list(runs.glob("*/checkpoint.pt"))) == 2


def test_a_terminal_that_is_closed_loses_nothing(tmp_path: Path):
    experiment, runs = tmp_path / "one.toml", tmp_path / "runs"
    experiment.write_text('data = "synthetic"\nepochs = 4000\nmethod = "DSR"\nsparsity = 0.9\nbatch_size = 50\n')
    command = [sys.executable, "-m", "regrow", "sweep", str(experiment), "--runs", str(runs)]
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*command, "--save-every", "1000"],
        start_new_session=True, stdin=its, stdout=its, stderr=its,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # as a shell in a window has it
    )  # fmt: skip
    os.close(its)
    while not list(runs.glob("*/metrics.csv")):
        assert process.poll() is None
        if select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)
    process.wait(timeout=60)
    assert len(list(runs.glob("*/checkpoint.pt"))) == 1


def test_a_closed_terminal_may_be_told_twice_and_does_not_stop_who_is_to_outlive_it():
    with stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert should_stop()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_on_signals() as should_stop:
            signal.raise_signal(signal.SIGHUP)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_another_process_trains_has_not_failed(tmp_path: Path):
    said = io.StringIO()
    there, ours = small(epochs=2000), small(seed=1)
    child = small(method={"name": "Static"}, start={"topology": "final", "run": there.id})
    command = [sys.executable, "-m", "regrow", "train", "-m", "DSR", "-s", "0.9", "--data", "synthetic", "--epochs"]
    other = subprocess.Popen([*command, "2000", "batch_size=200", "method.period=4", "--runs", str(tmp_path)])
    while not (tmp_path / there.id / "metrics.csv").exists():
        assert other.poll() is None
        time.sleep(0.05)
    try:
        with Board(Console(file=said, width=200)) as board:
            backlog = Backlog([there, child, ours], tmp_path, board)
            train_in_lanes(backlog, Options(threads=1), 2, lambda: False)
        assert other.poll() is None
    finally:
        other.terminate()
        other.wait()
    outcome = backlog.close()
    assert (outcome.elsewhere, outcome.done, outcome.failed) == ([there.id, child.id], [ours.id], {})
    assert outcome.kind == "elsewhere"
    assert f"{there.id}  another process is training" in said.getvalue()


def test_what_another_process_finished_in_the_meantime_is_finished(tmp_path: Path):
    config = small()
    backlog = Backlog([config], tmp_path, Board(Console(file=io.StringIO())))
    assert backlog.take() == config
    backlog.ended(config.id, Ending("elsewhere", "another process is training"))
    train(config, tmp_path, Options(threads=1))
    outcome = backlog.close()
    assert (outcome.kind, outcome.skipped, outcome.elsewhere) == ("done", [config.id], [])


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_the_exit_code_tells_that_another_process_trains(command: str, tmp_path: Path):
    experiment = tmp_path / "one.toml"
    settings = ["data=synthetic", "epochs=2", "batch_size=200", "method=DSR", "sparsity=0.9"]
    experiment.write_text('method = "DSR"\nsparsity = 0.9\n')
    config = make_config(dict(map(parse_override, settings[:3])) | {"method": {"name": "DSR", "sparsity": 0.9}})
    arguments = [command, *([str(experiment)] if command == "sweep" else []), *settings, "--runs", str(tmp_path)]
    with RunFolder(tmp_path / config.id).lock():
        told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 75
    assert "another process is training" in told.stderr
