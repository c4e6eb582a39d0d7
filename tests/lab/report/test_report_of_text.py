"""Runs that are told in steps and judged in bits per byte: tables, figures and the page say so, and no accuracy."""

import csv
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from text_runs import a_text, on

from regrow.lab.report.learning_figures import learning_curve
from regrow.lab.report.results import Experiment, collect
from regrow.lab.report.show import show_run
from regrow.lab.report.tables import results_grid, results_table
from regrow.lab.report.write import write_report
from regrow.lab.run.folder import find_runs, read_run
from regrow.lab.run.loop import Options, train
from regrow.lab.sweep.outcome import how_it_ends


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns, and one with a rate too small for that."""
    root = tmp_path_factory.mktemp("text")
    path = a_text(root)
    for lr, name in ((1.0, "SET"), (1e-4, "Static")):
        config = on(path, max_steps=100, optimizer={"lr": lr}, method={"name": name, "sparsity": 0.5})
        train(config, root / "runs", Options(threads=1))
    return root / "runs"


@pytest.fixture(scope="module")
def experiment(runs: Path) -> Experiment:
    (found,) = collect(*find_runs([runs])).experiments
    return found


def in_terminal(shown: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lower_is_better(experiment: Experiment):
    good, bad = experiment.best_first(experiment.groups)
    assert good.median < bad.median
    assert good.label.startswith("SET")


def test_tables_have_bits_per_byte_and_no_accuracy(experiment: Experiment, runs: Path):
    grid = results_grid(experiment.groups)
    keys = [column.key for column in grid.columns]
    assert "bits_per_byte" in keys
    assert "accuracy" not in keys
    summary = read_run(next(path.parent for path in runs.glob("*set*/config.json"))).summary
    assert summary is not None
    assert f"{summary['bits_per_byte']:.3f}" in [row[keys.index("bits_per_byte")].text for row in grid.rows]
    told = in_terminal(results_table(collect(*find_runs([runs]))))
    assert "bits per byte" in told
    assert "accuracy" not in told


def test_curves_are_drawn_over_steps(experiment: Experiment):
    assert experiment.time == "step"
    curve = learning_curve(experiment.groups[0].results, experiment.score.of, experiment.time)
    assert list(curve) == list(range(10, 101, 10))
    assert list(curve.values())[-1] == pytest.approx(experiment.groups[0].median)


def test_the_page_speaks_of_bits_per_byte(runs: Path, tmp_path: Path):
    page = write_report([runs], tmp_path).page.read_text()
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S).lower()
    assert "bits per byte" in text
    assert "accurac" not in text
    assert "bits per byte by step" in text
    lines = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert [line["method"] for line in lines if float(line["bits_per_byte_median"]) < 6] == ["SET, lr 1"]
    assert not [key for key in lines[0] if "accuracy" in key]


def test_one_run_shows_its_bits_per_byte(runs: Path):
    path = next(path.parent for path in runs.glob("*set*/config.json"))
    told = in_terminal(show_run(read_run(path)))
    assert "test bits per byte" in told
    assert "100 steps in" in told
    assert "accuracy" not in told


def test_how_a_run_ended_is_told_in_bits_per_byte(runs: Path):
    from regrow.lab.run.folder import RunFolder

    ending = how_it_ends(lambda: None, RunFolder(next(path.parent for path in runs.glob("*set*/config.json"))))
    assert re.match(r"done: \d\.\d{3} bits per byte in [\d.]+ s", ending.sentence)
