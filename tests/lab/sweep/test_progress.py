"""What is seen while runs train, on terminals and in logs."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from text_runs import a_text, on

from regrow.lab.config import Config, make_config
from regrow.lab.run.loop import Progress
from regrow.lab.sweep.lines import short_names
from regrow.lab.sweep.outcome import Ending
from regrow.lab.sweep.plan import Plan
from regrow.lab.sweep.progress import Board

DONE = Ending("done", "done: 98.00 % in 1 min 40 s")


@dataclass
class Watch:
    """A board, the clock it looks at, and what it writes."""

    width: int = 80
    is_terminal: bool = True
    time: float = 0.0
    file: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        console = Console(file=self.file, width=self.width, force_terminal=self.is_terminal, color_system=None)
        self.board = Board(console, now=lambda: self.time)

    def expect(self, *configs: Config, left: dict[str, float] | None = None) -> None:
        runs = {config.id: config for config in configs}
        self.board.expect(Plan(runs, dict.fromkeys(runs, 1.0) if left is None else left))

    def hear(self, config: Config, time: float, epoch: float, score: float | None = 98.66) -> None:
        """At some time a run of 20 epochs of 100 steps tells how far it is."""
        self.time = time
        self.board.update(config.id, Progress(round(100 * epoch), 2000, int(epoch), 20, 0.25, score))

    @property
    def rows(self) -> list[str]:
        """What was written since the lines before were wiped away."""
        *_, last = filter(None, re.split(r"\x1b\[[?\d]*[a-zA-Z]", self.file.getvalue()))
        return [line.rstrip() for line in last.split("\n")]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    with watch.board:
        yield watch


def dsr(seed: int = 0, **settings: Any) -> Config:
    return make_config({"method": "DSR", "sparsity": 0.995, "seed": seed, "epochs": 20, **settings})


def test_a_run_has_a_label_a_bar_its_accuracy_and_the_time_left(watch: Watch):
    run = dsr()
    watch.expect(run)
    watch.board.begin(run.id)
    assert watch.rows == [f"DSR 0.995 s0 {'':36} {'loading':>11}"]
    watch.hear(run, 3.0, epoch=0.5, score=None)
    watch.hear(run, 4.0, epoch=2)
    assert watch.rows == [f"DSR 0.995 s0 {'━━━╸':36} {'epoch 3/20':>11} 98.66 %"], "a second tells nothing of its speed"
    watch.hear(run, 13.0, epoch=10.5)
    assert watch.rows == [f"DSR 0.995 s0 {18 * '━' + '╸':36} epoch 11/20 98.66 %  0:10 left"]


def test_one_that_was_interrupted_goes_by_what_it_does_now(watch: Watch):
    run = dsr()
    watch.expect(run, left={run.id: 0.5})
    watch.board.begin(run.id)
    watch.hear(run, 100.0, epoch=10)
    watch.hear(run, 104.0, epoch=12)
    assert watch.rows[0].endswith("epoch 13/20 98.66 %  0:16 left")


def test_the_first_line_is_that_of_the_whole_sweep(watch: Watch):
    """Two at a time: what is left of both, and a run of the same kind that waits, of which half was done before."""
    one, two, three, four = (dsr(seed) for seed in range(4))
    watch.expect(one, two, three, four, left={one.id: 1.0, two.id: 1.0, three.id: 0.5})
    watch.board.begin(one.id)
    watch.board.begin(two.id)
    for run in (one, two):
        watch.hear(run, 0.0, epoch=0)
    assert watch.rows[0].split("  ")[0] == "1 of 4 runs"
    assert "left" not in watch.rows[0]
    watch.hear(one, 10.0, epoch=5)
    watch.hear(two, 12.0, epoch=6)
    # 30 s and 28 s of the two, and 20 s of the third: 78 s, two at a time
    assert [row[-10:].strip() for row in watch.rows] == ["0:39 left", "0:30 left", "0:28 left"]
    watch.time = 40.0
    watch.board.end(one.id, DONE)
    assert watch.rows[0] == f"{one.id}  {DONE}"
    assert watch.rows[1].startswith("2 of 4 runs")


def test_what_a_run_took_tells_how_long_those_to_come_will(watch: Watch):
    one, two = dsr(0), dsr(1)
    watch.expect(one, two)
    watch.board.begin(one.id)
    watch.hear(one, 5.0, epoch=0)
    watch.time = 50.0
    watch.board.end(one.id, DONE)
    watch.board.begin(two.id)
    assert watch.rows[0].endswith("0:50 left"), "with the time that it took to begin"


def test_nothing_is_said_of_what_nothing_is_known_about(watch: Watch):
    """A run on other data takes nobody knows how long."""
    one, other = dsr(), dsr(data="fashion_mnist")
    watch.expect(one, other)
    watch.board.begin(one.id)
    for time in (0.0, 10.0):
        watch.hear(one, time, epoch=time / 2)
    assert [("left" in row) for row in watch.rows] == [False, True]


def test_what_was_to_start_from_a_run_that_failed_takes_no_time(watch: Watch):
    one, other = dsr(), dsr(seed=1)
    child = dsr(data="fashion_mnist")
    watch.expect(one, other, child)
    watch.board.begin(one.id)
    watch.board.begin(other.id)
    for time in (0.0, 10.0):
        watch.hear(one, time, epoch=time / 2)
    watch.board.end(other.id, Ending("failed", "out of memory"), dropped=[child.id])
    assert watch.rows[1].endswith("0:30 left")


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_long_names_leave_room_for_the_rest(width: int):
    method = {"name": "RigL", "until": 20, "granularity": "kernel"}
    start = {"topology": "final", "weights": "initial", "run": {"method": method, "optimizer": {"lr": 0.3}}}
    runs = [dsr(12, method=name, start=start) for name in ("Static", "SET")]
    watch = Watch(width)
    with watch.board:
        watch.expect(*runs)
        for run in runs:
            watch.board.begin(run.id)
            watch.hear(run, 0.0, epoch=0)
        for later, run in enumerate(runs):
            watch.hear(run, 3600.0 + later, epoch=12)
        rows = watch.rows
    assert len(rows) == 3
    assert all(len(row) <= min(width, 110) for row in rows)
    for row in rows[1:]:
        assert "0.995 s12 ━" in row
        assert re.search(r"epoch 13/20 .*98.66 % +40:0\d left$", row)
    assert ("loss 0.25" in rows[1]) == (width >= 100)


def test_runs_on_text_are_told_in_steps_and_bits_per_byte(watch: Watch, tmp_path: Path):
    run = on(a_text(tmp_path), max_steps=1500)
    watch.expect(run, on(tmp_path / "a.txt", max_steps=1500, seed=1))
    watch.board.begin(run.id)
    for time, step in ((0.0, 0), (10.0, 1000)):
        watch.time = time
        watch.board.update(run.id, Progress(step, 1500, 0, 1, 1.1, 1.9))
    assert watch.rows[1].startswith("SET, period")
    assert watch.rows[1].endswith("step 1,000/1,500 1.900 bits per byte  0:05 left")
    assert watch.rows[0].endswith(" 0:20 left"), "waiting ones are known by their steps, too"


def test_names_say_what_tells_runs_apart():
    common = {"optimizer": {"lr": 0.05}}
    runs = [dsr(**common), dsr(seed=3, **common), make_config({"method": "Dense", "epochs": 20, **common})]
    assert list(short_names(runs).values()) == [("DSR", "0.995 s0"), ("DSR", "0.995 s3"), ("Full dense", "s0")]
    two = [dsr(), dsr(data="fashion_mnist", method={"name": "DSR", "granularity": "kernel"})]
    assert [name for name, _ in short_names(two).values()] == ["mnist DSR", "fashion_mnist DSR, kernels"]


def test_a_log_has_a_plain_line_every_so_often():
    """Six hours of a run that tells how far it is five times a second: lines by the hundred, not by the thousand."""
    watch, one, two = Watch(is_terminal=False), dsr(), dsr(seed=1)
    with watch.board:
        watch.expect(one, two)
        watch.board.begin(one.id)
        for tenth in range(0, 10 * 6 * 3600, 2):
            watch.hear(one, tenth / 10, epoch=tenth / 10 / 1800)
    lines = watch.file.getvalue().splitlines()
    assert re.fullmatch(r"0 of 2 runs, 14:\d+:\d+ left; DSR 0.995 s0: epoch 12/20, 98.66 %, 4:\d+:\d+ left", lines[-1])
    assert "\x1b" not in watch.file.getvalue()
    assert 100 < len(lines) < 150
