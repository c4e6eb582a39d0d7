"""Results are gathered over seeds, and the numbers are those of the run folders."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from example_runs import write_examples, write_run
from rich.console import Console

from regrow.lab.report.export import results_csv, runs_csv
from regrow.lab.report.results import Collection, Group, collect
from regrow.lab.report.tables import results_grid, results_table, where_grid
from regrow.lab.run.folder import RunFolder, find_runs


def collected(root: Path) -> Collection:
    return collect(*find_runs([root]))


def only_group(root: Path) -> Group:
    (experiment,) = collected(root).experiments
    (group,) = experiment.groups
    return group


def cells(group: Group) -> dict[str, str]:
    grid = results_grid([group])
    return {column.key: cell.text for column, cell in zip(grid.columns, grid.rows[0], strict=True)}


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((97.0, 98.0, 99.0, 99.6)):
        write_run(tmp_path, accuracy, method="SET", sparsity=0.97, epochs=2, seed=seed)
    group = only_group(tmp_path)
    assert group.mean == pytest.approx(98.4)
    assert group.sd == pytest.approx(((1.96 + 0.16 + 0.36 + 1.44) / 3) ** 0.5)
    assert group.median == pytest.approx(98.5)
    shown = cells(group)
    assert shown["accuracy"] == "98.40 ± 1.14"
    assert shown["n"] == "4"
    assert group.representative.accuracy == 98.0


def test_how_weights_are_stored_is_told_only_where_both_ways_were_run(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="SET", sparsity=0.97, epochs=2, seed=0)
    write_run(tmp_path, 98.0, method="SET", sparsity=0.97, epochs=2, seed=1, storage="packed")
    group = only_group(tmp_path)
    assert (group.label, group.scores) == ("SET", [97.0, 98.0])
    write_run(tmp_path, 98.5, method="SET", sparsity=0.97, epochs=2, seed=0, storage="packed")
    (experiment,) = collected(tmp_path).experiments
    assert [(group.label, group.scores) for group in experiment.groups] == [
        ("SET", [97.0]),
        ("SET, packed", [98.5, 98.0]),
    ]


def test_one_run_has_no_deviation(tmp_path: Path) -> None:
    write_run(tmp_path, 97.25, method="SET", sparsity=0.97, epochs=2)
    assert cells(only_group(tmp_path))["accuracy"] == "97.25"


def test_sizes_are_those_of_the_summary(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2, seconds=75)
    shown = cells(only_group(tmp_path))
    # 784-300-100-10 without biases: 266,200 positions; two numbers per unit of the norms: 820 dense parameters
    assert shown["parameters"] == "27,440"
    assert shown["flops"] == "53.2 k"
    assert shown["epochs"] == "2"
    assert shown["seconds"] == "1 min 15 s"


def test_a_reference_stands_beside_runs_of_the_papers_sparsity(tmp_path: Path) -> None:
    write_run(tmp_path, 98.0, method="DSR", sparsity=0.99, epochs=100)
    shown = cells(only_group(tmp_path))
    assert shown["reference"] == "97.75 ± 0.04"
    assert shown["difference"] == "+0.25"
    assert not only_group(tmp_path).has_other_length


def test_a_reference_is_for_runs_that_train_as_in_the_paper(tmp_path: Path) -> None:
    """In whatever storage or precision, but not at another rate that all runs share and labels leave unsaid."""
    write_run(tmp_path / "same", 98.0, method="DSR", sparsity=0.99, epochs=100, precision="bfloat16", storage="packed")
    reference = only_group(tmp_path / "same").reference
    assert reference is not None
    assert reference.mean == 97.75
    write_run(tmp_path / "other", 98.0, method="DSR", sparsity=0.99, epochs=100, optimizer={"lr": 0.05})
    group = only_group(tmp_path / "other")
    assert (group.label, group.reference) == ("DSR", None)


def test_a_shorter_run_says_that_the_length_differs(tmp_path: Path) -> None:
    write_run(tmp_path, 50.0, method="Static", sparsity=0.99, epochs=10)
    grid = results_grid([only_group(tmp_path)])
    remarks = {column.key: cell.remark for column, cell in zip(grid.columns, grid.rows[0], strict=True)}
    assert (remarks["reference"], remarks["epochs"]) == ("length differs", "of 200")
    assert cells(only_group(tmp_path))["epochs"] == "20"


def test_lengths_are_told_apart_only_where_they_are_mixed(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2)
    assert only_group(tmp_path).label == "DSR"
    write_run(tmp_path, 98.0, method="DSR", sparsity=0.9, epochs=4)
    groups = collected(tmp_path).experiments[0].groups
    assert [group.label for group in groups] == ["DSR, 2 epochs", "DSR, 4 epochs"]
    assert [group.reference for group in groups] == [group.reference for group in groups if group.reference]


def test_experiments_are_pairs_of_model_and_data(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2)
    write_run(tmp_path, 90.0, method="DSR", sparsity=0.9, epochs=2, data="fashion_mnist")
    titles = [experiment.title for experiment in collected(tmp_path).experiments]
    assert titles == ["LeNet-300-100 on Fashion-MNIST", "LeNet-300-100 on MNIST"]


def test_dense_comes_first_then_the_sparsest(tmp_path: Path) -> None:
    write_examples(tmp_path)
    (experiment,) = collected(tmp_path).experiments
    order = [(group.label, group.sparsity) for group in experiment.groups]
    sparse = [(name, sparsity) for sparsity in (0.99, 0.95) for name in ("Static", "SET", "DSR")]
    assert order == [("Full dense", None), *sparse]
    assert experiment.chosen_sparsity == 0.99


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_run(tmp_path / folder, 97.0, method="SET", sparsity=0.9, epochs=2)
    found = collected(tmp_path)
    assert len(found.results) == 1
    assert "more than once" in found.problems[0]


def test_unfinished_runs_are_listed_and_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2)
    write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2, seed=1, finished=False)
    found = collected(tmp_path)
    assert len(found.results) == len(found.unfinished) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda summary: summary.pop("flops"), "has no flops"),
        (lambda summary: summary.update(accuracy="high"), "tells no accuracy"),
        (lambda summary: summary["layers"][0].update(shape=[0]), "has no weights"),
        (lambda summary: summary.update(size=None), "cannot be used"),
        (lambda summary: summary.update(accuracy=float("nan")), "its summary says nan"),
        (lambda summary: summary["layers"][0].update(name="other"), "layers.csv has no other"),
    ],
)
def test_a_bad_summary_is_named(tmp_path: Path, change: Any, message: str) -> None:
    path = write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2)
    summary = RunFolder(path).read_json("summary.json")
    change(summary)
    RunFolder(path).write_json("summary.json", summary)
    found = collected(tmp_path)
    assert not found.results
    (problem,) = found.problems
    assert path.name in problem
    assert message in problem


def test_the_csv_says_the_same(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.99, epochs=100, seed=0)
    write_run(tmp_path, 98.0, method="DSR", sparsity=0.99, epochs=100, seed=1)
    (line,) = csv.DictReader(io.StringIO(results_csv(collected(tmp_path))))
    assert (line["model"], line["data"], line["method"], line["sparsity"]) == ("lenet_300_100", "mnist", "DSR", "0.99")
    assert (line["n"], line["accuracy_mean"], line["accuracy_sd"]) == ("2", "97.5", "0.7071")
    assert (line["accuracy_min"], line["accuracy_max"], line["reference_mean"]) == ("97", "98", "97.75")
    lines = list(csv.DictReader(io.StringIO(runs_csv(collected(tmp_path)))))
    assert [(run["seed"], run["accuracy"], run["torch"]) for run in lines] == [
        ("0", "97", "2.13.0"),
        ("1", "98", "2.13.0"),
    ]


def test_what_few_read_is_in_the_csv(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((97.0, 98.0, 99.0, 99.6)):
        path = write_run(tmp_path, accuracy, method="DSR", sparsity=0.9, epochs=2, seed=seed)
        summary = RunFolder(path).read_json("summary.json")
        RunFolder(path).write_json("summary.json", summary | {"training_bytes": 1000 + seed})
    (line,) = csv.DictReader(io.StringIO(results_csv(collected(tmp_path))))
    assert (line["accuracy_median"], line["accuracy_min"], line["accuracy_max"]) == ("98.5", "97", "99.6")
    assert line["bits"] == str(32 * 27_440 + 266_200)
    assert line["training_bytes"] == "1001.5"
    first, *_ = csv.DictReader(io.StringIO(runs_csv(collected(tmp_path))))
    assert first["training_bytes"] == "1000"


def test_training_state_of_several_storages_has_no_median(tmp_path: Path) -> None:
    for seed, storage in enumerate(("dense", "packed")):
        path = write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2, seed=seed, storage=storage)
        summary = RunFolder(path).read_json("summary.json")
        RunFolder(path).write_json("summary.json", summary | {"training_bytes": 1000})
    (line,) = csv.DictReader(io.StringIO(results_csv(collected(tmp_path))))
    assert line["training_bytes"] == ""


def test_what_was_run_where_adds_up(tmp_path: Path) -> None:
    write_examples(tmp_path, epochs=2)
    grid = where_grid(collected(tmp_path).results)
    (row,) = grid.rows
    shown = {column.key: cell.text for column, cell in zip(grid.columns, row, strict=True)}
    assert shown["runs"] == "21"
    assert shown["time"] == "21 min 0 s"
    assert shown["last"] == "2026-01-31"


def in_terminal(root: Path) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results_table(collected(root)))
    return console.export_text()


def test_the_table_in_the_terminal_fits_80_columns(tmp_path: Path) -> None:
    write_examples(tmp_path)
    text = in_terminal(tmp_path)
    assert "LeNet-300-100 on MNIST" in text
    assert "97.40 ± 0.20    97.75 *" in text
    assert "…" not in text


def test_what_all_runs_of_a_table_share_is_said_below_it(tmp_path: Path) -> None:
    for method in ("DSR", "SET"):
        write_run(tmp_path, 98.0, method=method, sparsity=0.95, epochs=2, optimizer={"momentum": 0.8})
    text = in_terminal(tmp_path)
    assert re.search("^All runs: momentum 0.8. *$", text, re.MULTILINE)
    assert "reference" not in text, "the paper's runs have another"
