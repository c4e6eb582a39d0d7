"""The table at the top: a row per method, a column per sparsity, and what all runs have in common below."""

from pathlib import Path

import pytest
from example_runs import write_examples, write_run

from regrow.lab.report.matrix import matrix, matrix_caption
from regrow.lab.report.results import Experiment, collect
from regrow.lab.report.story import common
from regrow.lab.report.tables import Cell, Grid
from regrow.lab.run.folder import find_runs


def experiment_in(root: Path) -> Experiment:
    (experiment,) = collect(*find_runs([root])).experiments
    return experiment


def matrix_of(root: Path) -> Grid:
    grid = matrix(experiment_in(root))
    assert grid is not None
    return grid


def texts(rows: list[list[Cell]]) -> list[list[str]]:
    return [[" ".join(cell.text.split()) for cell in row] for row in rows]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_examples(root)
    return root


def test_methods_by_sparsity_the_sparsest_first_and_dense_networks_below(examples: Path) -> None:
    grid = matrix_of(examples)
    assert [column.title for column in grid.columns] == ["method", "0.99", "0.95"]
    assert texts(grid.rows) == [
        ["Static", "49.50 ± 2.00", "89.50 ± 2.00"],
        ["SET", "90.20 ± 0.30", "96.60 ± 0.30"],
        ["DSR", "97.40 ± 0.20", "98.20 ± 0.20"],
    ]
    assert texts(list(grid.foot)) == [["Full dense", "98.40 ± 0.10 with 267,020 parameters"]]


def test_the_best_of_a_sparsity_is_marked(examples: Path) -> None:
    marked = [(row[0].text, [cell.is_best for cell in row[1:]]) for row in matrix_of(examples).rows]
    assert marked == [("Static", [False, False]), ("SET", [False, False]), ("DSR", [True, True])]


def test_thin_networks_have_more_weights_and_are_not_the_best(tmp_path: Path) -> None:
    write_run(tmp_path, 99.0, method="Dense", sparsity=0.9, width="thin", epochs=2)
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2)
    assert not any(cell.is_best for row in matrix_of(tmp_path).rows for cell in row)
    write_run(tmp_path, 96.0, method="SET", sparsity=0.9, epochs=2)
    assert [row[0].text for row in matrix_of(tmp_path).rows if row[1].is_best] == ["DSR"]


def test_references_stand_below_and_those_of_another_length_have_a_star(tmp_path: Path) -> None:
    write_run(tmp_path, 98.0, method="DSR", sparsity=0.99, epochs=100)
    write_run(tmp_path, 50.0, method="Static", sparsity=0.99, epochs=10)
    static, dsr = (" ".join(row[1].remark.split()) for row in matrix_of(tmp_path).rows)
    assert (static, dsr) == ("*49.50 ± 5.90", "97.75 ± 0.04")
    assert "In small print the reference. *: trained for another" in matrix_caption(experiment_in(tmp_path))


def test_a_sparsity_at_which_a_method_was_not_run_is_empty(tmp_path: Path) -> None:
    for method, sparsity in (("DSR", 0.9), ("SET", 0.8)):
        write_run(tmp_path, 98.0, method=method, sparsity=sparsity, epochs=2)
    assert texts(matrix_of(tmp_path).rows) == [["SET", "", "98.00"], ["DSR", "98.00", ""]]


def test_what_stopped_early_has_its_own_figure(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.99, epochs=2)
    write_run(tmp_path, 95.0, method={"name": "DSR", "sparsity": 0.99, "until": 10}, epochs=2)
    assert texts(matrix_of(tmp_path).rows) == [["DSR", "97.00"]]


def test_dense_networks_alone_make_no_table(tmp_path: Path) -> None:
    write_run(tmp_path, 98.0, method="Dense", epochs=2)
    assert matrix(experiment_in(tmp_path)) is None


def test_shared_settings_are_in_the_caption(tmp_path: Path) -> None:
    for method in ("Static", "SET", "DSR"):
        write_run(tmp_path, 97.0, method=method, sparsity=0.9, epochs=2, batch_size=50, optimizer={"lr": 0.05})
    assert common(experiment_in(tmp_path)) == ["All runs: batch size 50 and lr 0.05."]
    assert [row[0].text for row in matrix_of(tmp_path).rows] == ["Static", "SET", "DSR"]
    write_run(tmp_path, 98.0, method="DSR", sparsity=0.9, epochs=2, batch_size=50)
    assert common(experiment_in(tmp_path)) == ["All runs: batch size 50.", "Unless said otherwise: lr 0.05."]
    assert matrix_caption(experiment_in(tmp_path)).endswith("All runs: batch size 50. Unless said otherwise: lr 0.05.")
    assert [row[0].text for row in matrix_of(tmp_path).rows] == ["Static", "SET", "DSR", "DSR, the paper's lr"]
