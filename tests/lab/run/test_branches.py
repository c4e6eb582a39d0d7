"""Runs that stop rewiring at various times begin as one."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import assert_same_result, small, stop_after

from regrow.lab.config import Config
from regrow.lab.run.branches import find_trunks
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, train
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.lanes import train_in_lanes
from regrow.lab.sweep.outcome import Ending, Outcome
from regrow.lab.sweep.processes import train_in_processes
from regrow.lab.sweep.progress import Board


def stops_at(epoch: float | None, **settings: Any) -> Config:
    """A run of eight epochs that rewires until one of them."""
    method = {"name": "DSR", **settings.pop("method", {}), "until": epoch}
    return small(epochs=8, written_for=8, optimizer={"lr": {0: 0.1, 4: 0.02}}, method=method, **settings)


def in_lanes(configs: list[Config], root: Path, num_lanes: int = 3) -> Outcome:
    with Board(Console(file=io.StringIO())) as board:
        backlog = Backlog(configs, root, board)
        train_in_lanes(backlog, Options(threads=1), num_lanes, lambda: False)
    return backlog.close()


def beginning_of(config: Config, root: Path) -> str | None:
    summary = RunFolder(root / config.id).summary()
    assert summary is not None
    return summary["provenance"].get("beginning")


def test_the_run_that_rewires_longest_is_the_trunk_of_those_that_differ_in_that_alone():
    two, five, end = stops_at(2), stops_at(5), stops_at(None)
    assert find_trunks([two, five, stops_at(5, seed=1)]) == {two.id: five.id}
    assert find_trunks([two, end, five]) == {two.id: end.id, five.id: end.id}


def test_what_prunes_less_towards_its_end_has_no_beginning_in_common_with_others():
    assert not find_trunks([stops_at(epoch, method={"name": "RigL"}) for epoch in (2, 5)])


def test_runs_that_part_within_the_first_epoch_share_nothing_worth_it():
    assert not find_trunks([stops_at(0), stops_at(0.9), stops_at(5)])


def test_runs_that_never_part_wait_for_nobody():
    assert not find_trunks([stops_at(8), stops_at(None)])
    assert not find_trunks([stops_at(None), stops_at(8)])


@pytest.mark.parametrize("method", ["DSR", "SET", "DeepR"])
def test_a_branch_ends_as_if_it_had_trained_alone(method: str, tmp_path: Path):
    """Also where rewiring stops within an epoch: the last whole one before is shared."""
    configs = [stops_at(epoch, method={"name": method, "period": 4}) for epoch in (2, 3.5, 6)]
    outcome = in_lanes(configs, tmp_path / "together")
    assert sorted(outcome.done) == sorted(config.id for config in configs)
    for config, shared in zip(configs, (2, 3, None), strict=True):
        train(config, tmp_path / "alone", Options(threads=1))
        assert_same_result(tmp_path / "together" / config.id, tmp_path / "alone" / config.id)
        said = f"epochs 1 to {shared} are those of {configs[2].id}" if shared else None
        assert beginning_of(config, tmp_path / "together") == said


def test_branches_grow_in_processes_too(tmp_path: Path):
    configs = [stops_at(2), stops_at(6)]
    with Board(Console(file=io.StringIO())) as board:
        backlog = Backlog(configs, tmp_path / "together", board)
        train_in_processes(backlog, Options(threads=1), 2, lambda: False)
    assert len(backlog.close().done) == 2
    assert "epochs 1 to 2" in str(beginning_of(configs[0], tmp_path / "together"))
    train(configs[0], tmp_path / "alone", Options(threads=1))
    assert_same_result(tmp_path / "together" / configs[0].id, tmp_path / "alone" / configs[0].id)


def test_a_branch_that_has_begun_by_itself_goes_on_by_itself(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    stop_after(7, branch, tmp_path)
    assert len(in_lanes([branch, trunk], tmp_path).done) == 2
    assert beginning_of(branch, tmp_path) is None


def test_a_branch_whose_folder_is_in_use_does_not_trouble_its_trunk(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    with RunFolder(tmp_path / branch.id).lock():
        outcome = in_lanes([branch, trunk], tmp_path)
    assert outcome.done == [trunk.id]
    assert (outcome.elsewhere, outcome.failed) == ([branch.id], {})


def test_nor_does_one_that_cannot_be_written(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    (tmp_path / branch.id).write_text("in the way")
    outcome = in_lanes([branch, trunk], tmp_path)
    assert outcome.done == [trunk.id]
    assert "File exists" in outcome.failed[branch.id]


def test_nor_does_one_that_holds_another_run(tmp_path: Path):
    branch, trunk, other = stops_at(3), stops_at(6), stops_at(3, seed=1)
    folder = RunFolder(tmp_path / branch.id)
    with folder.lock():
        folder.claim(other)
    outcome = in_lanes([branch, trunk], tmp_path)
    assert outcome.done == [trunk.id]
    assert "belongs to another run" in outcome.failed[branch.id]
    assert not folder.file("checkpoint.pt").exists()


def test_nobody_waits_for_a_trunk_that_has_gone_past(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    stop_after(45, trunk, tmp_path)
    backlog = Backlog([branch, trunk], tmp_path, Board(Console(file=io.StringIO())))
    assert [backlog.take(), backlog.take()] == [branch, trunk]


def test_when_a_trunk_fails_another_takes_its_place(tmp_path: Path):
    first, second, trunk = stops_at(2), stops_at(4), stops_at(6)
    backlog = Backlog([first, second, trunk], tmp_path, Board(Console(file=io.StringIO())))
    assert backlog.take() == trunk
    backlog.ended(trunk.id, Ending("failed", "out of memory"))
    assert backlog.take() == second
    assert backlog.branches_of(second) == (first,)
    assert backlog.take() is None


def test_a_finished_run_is_nobodys_trunk(tmp_path: Path):
    configs = [stops_at(2), stops_at(4), stops_at(None)]
    train(configs[2], tmp_path, Options(threads=1))
    assert len(in_lanes(configs, tmp_path).done) == 2
    assert configs[1].id in str(beginning_of(configs[0], tmp_path))


def test_a_branch_waits_for_its_trunk_and_no_longer_when_that_has_failed(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    backlog = Backlog([branch, trunk], tmp_path, Board(Console(file=io.StringIO())))
    assert backlog.take() == trunk
    assert backlog.branches_of(trunk) == (branch,)
    assert backlog.take() is None
    backlog.ended(trunk.id, Ending("failed", "out of memory"))
    assert backlog.take() == branch


def test_trunk_and_branch_that_were_stopped_end_with_the_same_bits(tmp_path: Path):
    branch, trunk = stops_at(3), stops_at(6)
    turns = iter(range(10**6))
    with Board(Console(file=io.StringIO())) as board:
        backlog = Backlog([branch, trunk], tmp_path / "parts", board)
        train_in_lanes(backlog, Options(threads=1), 2, lambda: next(turns) > 120)
    assert len(list((tmp_path / "parts").glob("*/checkpoint.pt"))) == 2
    assert len(in_lanes([branch, trunk], tmp_path / "parts").done) == 2
    assert "epochs 1 to 3" in str(beginning_of(branch, tmp_path / "parts"))
    for config in (branch, trunk):
        train(config, tmp_path / "whole", Options(threads=1))
        assert_same_result(tmp_path / "parts" / config.id, tmp_path / "whole" / config.id)
