"""Sweeps on a Ray cluster end as those in one process do, also when a machine is lost on the way."""

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from small_runs import assert_same_result, small

from regrow.lab.config import Config
from regrow.lab.run.loop import Options, Progress, train
from regrow.lab.sweep import cluster as on_cluster
from regrow.lab.sweep.outcome import Outcome
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.sweep import sweep

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


class Watched(Board):
    """Remembers which steps each run has told of, and what was said."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=200))
        self.steps: dict[str, list[int]] = {}
        self.said: list[str] = []

    def update(self, run: str, far: Progress) -> None:
        self.steps.setdefault(run, []).append(far.step)
        super().update(run, far)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


class Machines:
    """A head that trains nothing, and two machines for a run each, all of them here."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quickly = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 4,
        }
        small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quickly, **small}
        )
        self.workers = [self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
        ray.init(self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def kill(self, node: object) -> None:
        """As if its plug were pulled."""
        [raylet] = node.all_processes["raylet"]  # type: ignore[attr-defined]
        whole = psutil.Process(raylet.process.pid)
        for process in [whole, *whole.children(recursive=True)]:
            process.kill()

    def down(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.down()


def run_all(configs: list[Config], root: Path, board: Board) -> Outcome:
    with board:
        return sweep(configs, root, Options(threads=1, save_every=0), None, board, ray)


def step_of(folder: Path) -> int:
    """Where a run would go on."""
    path = folder / "checkpoint.pt"
    return int(torch.load(path)["step"]) if path.exists() else 0


def long(seed: int = 0) -> Config:
    return small(seed=seed, epochs=2000)


# In this order, since the last one costs a machine


def test_runs_come_back_from_machines_that_do_not_see_the_folder(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also the first part of one that was interrupted goes there, and so does the run that another starts from."""
    monkeypatch.setattr(on_cluster, "_leave_mark", lambda root: "elsewhere")
    compressed = small(method={"name": "Gradual"})
    outcome = run_all([compressed], tmp_path / "cluster", Watched())
    assert (len(outcome.done), outcome.failed) == (2, {})
    assert not list(tmp_path.glob("cluster/*/checkpoint.pt"))
    for run in outcome.done:
        config = on_cluster.RunFolder(tmp_path / "cluster" / run).config()
        train(config, tmp_path / "alone", Options(threads=1))
        assert_same_result(tmp_path / "cluster" / run, tmp_path / "alone" / run)


def test_an_interrupted_sweep_saves_what_trains_and_begins_nothing_more(machines: Machines, tmp_path: Path):
    configs = [long(seed) for seed in range(3)]

    def interrupt() -> None:
        while len(list(tmp_path.glob("*/metrics.csv"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    outcome = run_all(configs, tmp_path, Watched())
    assert sorted(outcome.stopped) == sorted(config.id for config in configs)
    assert len(list(tmp_path.glob("*/checkpoint.pt"))) == 2
    assert not list(tmp_path.glob(".on-ray*"))


def test_a_sweep_loses_a_machine_and_no_result(machines: Machines, tmp_path: Path):
    configs = [small(seed=seed, epochs=12) for seed in range(2)]
    root, board = tmp_path / "cluster", Watched()
    saved: dict[str, int] = {}

    def pull_the_plug() -> None:
        """When both runs have saved something in their second epoch."""
        while not all(step_of(root / config.id) > 10 for config in configs):
            time.sleep(0.01)
        machines.kill(machines.workers[0])
        saved.update({config.id: step_of(root / config.id) for config in configs})

    puller = threading.Thread(target=pull_the_plug)
    puller.start()
    outcome = run_all(configs, root, board)
    puller.join()
    assert sorted(outcome.done) == sorted(config.id for config in configs)
    [lost] = [line for line in board.said if " lost (" in line]
    run = lost.split()[0]
    assert saved[run] > 10
    begun = (root / run / "initial_weights.safetensors").stat().st_mtime_ns
    assert begun < (root / run / "config.json").stat().st_mtime_ns, "it went on, and was not begun anew"
    for config in configs:
        train(config, tmp_path / "alone", Options(threads=1))
        assert_same_result(root / config.id, tmp_path / "alone" / config.id)


def test_a_run_that_no_machine_has_room_for_is_refused(machines: Machines, tmp_path: Path):
    with Watched() as board, pytest.raises(ValueError, match="no machine of the cluster has 64 CPUs"):
        sweep([small()], tmp_path, Options(threads=64), None, board, ray)
