"""What there is to do, and how long that takes."""

import io
from pathlib import Path

import pytest
from example_runs import write_run
from rich.console import Console
from small_runs import small, stop_after
from text_runs import a_text, on

from regrow.lab.config import make_config
from regrow.lab.run.loop import Options, train
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.plan import make_plan, with_parents
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.time_left import Pace, finished_under


def test_parents_come_first_and_once():
    compressed = [small(method={"name": "Gradual", "sparsity": sparsity}) for sparsity in (0.8, 0.9)]
    names = [config.method_name for config in with_parents(compressed)]
    assert names == ["Dense", "Gradual", "Gradual"]


def test_what_is_finished_is_not_to_be_done_and_what_was_begun_is_so_in_part(tmp_path: Path):
    finished, begun, new = (small(seed=seed, epochs=4) for seed in range(3))
    train(finished, tmp_path, Options(threads=1))
    stop_after(35, begun, tmp_path)  # three of four epochs of ten steps are noted
    plan = make_plan([finished, begun, new], tmp_path)
    assert plan.finished == [finished.id]
    assert plan.left == {begun.id: 0.25, new.id: 1.0}


def test_of_a_run_told_in_steps_the_steps_are_counted(tmp_path: Path):
    run = on(a_text(tmp_path), max_steps=25)
    stop_after(21, run, tmp_path)  # it is tested after every second one
    assert make_plan([run], tmp_path).left == {run.id: pytest.approx(0.2)}


def test_the_longest_runs_begin_first_also_those_told_in_steps(tmp_path: Path):
    for runs in ([small(epochs=epochs) for epochs in (2, 4)], [on(a_text(tmp_path), max_steps=n) for n in (20, 30)]):
        assert Backlog(runs, tmp_path, Board(Console(file=io.StringIO()))).take() == runs[1]


def test_a_branch_is_trained_from_where_it_parts(tmp_path: Path):
    early, late = (small(epochs=8, written_for=8, method={"until": epoch}) for epoch in (2, 6))
    assert make_plan([early, late], tmp_path).left == {early.id: 0.75, late.id: 1.0}


def test_runs_of_a_kind_take_as_long_for_an_epoch_and_others_on_the_same_data_about_as_long():
    pace = Pace([(small(), 10.0), (small(seed=1), 14.0), (small(storage="packed"), 2.0)])
    assert pace.seconds((small(epochs=6), 0.5)) == 18.0
    assert pace.seconds((small(storage="packed", epochs=4), 1.0)) == 4.0
    assert pace.seconds((small(method={"name": "SET"}), 1.0)) == pytest.approx(26 / 3)
    assert pace.seconds((small(batch_size=100), 1.0)) is None
    assert pace.seconds((small(data="mnist"), 1.0)) is None


def test_only_runs_that_were_finished_on_such_a_device_tell_how_long_others_take(tmp_path: Path):
    there = {"method": "DSR", "sparsity": 0.9}
    write_run(tmp_path / "below", 97.0, seconds=60.0, epochs=4, **there)
    write_run(tmp_path, 97.0, finished=False, epochs=5, **there)
    assert finished_under(tmp_path, "cpu") == [(make_config({**there, "epochs": 4}), 60.0)]
    assert finished_under(tmp_path, "some GPU") == []
