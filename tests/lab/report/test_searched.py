"""What a search has found, on the page."""

from pathlib import Path

import pytest
from example_runs import write_run

from regrow.lab.report.results import collect
from regrow.lab.report.searched import search_grid, search_story, series_of, title_of
from regrow.lab.report.tables import results_grid
from regrow.lab.report.write import write_report
from regrow.lab.run.folder import find_runs

SCORES = {"Dense": {0.01: 96.0, 0.1: 98.0, 1.0: 97.0}, "SET": {0.01: 95.0, 0.1: 96.0, 1.0: 97.5}}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two searches of a learning rate, and what was trained in the end."""
    for method, scores in SCORES.items():
        sparsity = {"sparsity": 0.9} if method == "SET" else {}
        for peak, score in scores.items():
            rate = {"learning_rate": {"name": "cosine", "peak": peak}}
            write_run(tmp_path, score, method=method, data={"held_out": 0.1}, **rate, **sparsity)
        write_run(tmp_path, 98.1, method=method, learning_rate={"name": "cosine", "peak": 0.1}, **sparsity)
    return tmp_path


def searched(runs: Path):
    (experiment,) = (e for e in collect(*find_runs([runs])).experiments if e.config.data.is_for_searching)
    return series_of(experiment)


def test_runs_that_differ_in_one_setting_are_a_series(runs: Path):
    dense, sparse = searched(runs)
    assert (dense.label, sparse.label) == ("Full dense", "SET, sparsity 0.9")
    assert {series.setting for series in (dense, sparse)} == {"learning_rate.peak"}
    assert dense.values == sparse.values == [0.01, 0.1, 1.0]
    assert (dense.values[dense.best], sparse.values[sparse.best]) == (0.1, 1.0)
    assert (dense.is_at_edge, sparse.is_at_edge) == (False, True)


def test_the_table_and_the_story_say_what_was_tried_and_where_the_best_lies(runs: Path):
    rows = [[cell.text for cell in row] for row in search_grid(searched(runs)).rows]
    assert rows == [
        ["Full dense", "learning rate peak", "0.01, 0.1, 1", "0.1", "98.00"],
        ["SET, sparsity 0.9", "learning rate peak", "0.01, 0.1, 1", "1", "97.50"],
    ]
    told = search_story(searched(runs))
    assert "Tried: learning rate peak 0.01, 0.1 and 1 for 2 rows of the table." in told
    assert told.endswith(
        "The best lies at an edge of what was tried, and better may lie beyond, for SET, sparsity 0.9 (1)."
    )


def test_two_searched_settings_are_series_along_each(tmp_path: Path):
    for peak in (0.1, 0.2):
        for decay in (0.0, 0.1):
            rate, optimizer = {"name": "cosine", "peak": peak}, {"name": "AdamW", "weight_decay": decay}
            write_run(
                tmp_path,
                97 + peak + decay,
                method="Dense",
                data={"held_out": 0.1},
                learning_rate=rate,
                optimizer=optimizer,
            )
    found = searched(tmp_path)
    assert sorted((series.setting, series.values) for series in found) == [
        ("learning_rate.peak", [0.1, 0.2]),
        ("learning_rate.peak", [0.1, 0.2]),
        ("optimizer.weight_decay", [0.0, 0.1]),
        ("optimizer.weight_decay", [0.0, 0.1]),
    ]
    assert len({series.label for series in found if series.setting == "learning_rate.peak"}) == 2
    assert title_of("optimizer.weight_decay") == "optimizer weight decay"


def judged_by_the_test(runs: Path):
    (experiment,) = (e for e in collect(*find_runs([runs])).experiments if not e.config.data.is_for_searching)
    return experiment


def test_what_was_chosen_is_told_beside_a_method_and_not_in_its_name(runs: Path):
    write_run(runs, 97.6, method="SET", sparsity=0.8, learning_rate={"name": "cosine", "peak": 1.0})
    groups = {(group.label, group.sparsity): group.chosen for group in judged_by_the_test(runs).groups}
    assert groups == {
        ("Full dense", None): "peak 0.1",
        ("SET", 0.9): "peak 0.1",
        ("SET", 0.8): "peak 1",
    }
    keys = [column.key for column in results_grid(judged_by_the_test(runs).groups).columns]
    assert keys[:3] == ["method", "sparsity", "chosen"]


def test_two_results_of_a_method_that_differ_in_what_was_searched_keep_it_in_their_names(runs: Path):
    write_run(runs, 97.0, method="SET", sparsity=0.9, learning_rate={"name": "cosine", "peak": 1.0})
    assert [group.label for group in judged_by_the_test(runs).groups if group.sparsity] == ["SET", "SET, peak 1"]
    assert not any(group.chosen for group in judged_by_the_test(runs).groups)


def test_what_is_compared_is_no_choice_though_it_was_searched_for_each(tmp_path: Path):
    """Two memories of Adam, for each of which the best rate was searched among three."""
    for betas, best in ((0.95, 0.2), (0.999, 0.1)):
        for peak in (0.05, 0.1, 0.2):
            data = {"data": {"held_out": 0.1}}
            common = {"method": "Dense", "optimizer": {"name": "AdamW", "betas": [0.9, betas]}}
            write_run(tmp_path, 97.0, learning_rate={"name": "cosine", "peak": peak}, **common, **data)
        write_run(tmp_path, 97.5, learning_rate={"name": "cosine", "peak": best}, **common)
    found = {group.label: group.chosen for group in judged_by_the_test(tmp_path).groups}
    assert found == {"Full dense, betas 0.9/0.95": "peak 0.2", "Full dense": "peak 0.1"}


def test_the_page_has_a_figure_of_the_search_and_tells_it_from_the_test(runs: Path, tmp_path: Path):
    page = write_report([runs], tmp_path / "report").page.read_text()
    assert "Held-out accuracy against learning rate peak" in page
    assert "nobody looked at the test" in page
    assert "Best of what was searched" in page
    assert len(list((tmp_path / "report" / "figures").glob("*-searched-peak.svg"))) == 1
