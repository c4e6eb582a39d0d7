"""Networks of different widths with as many active weights, side by side."""

from pathlib import Path

import pytest
from text_runs import a_text, on

from regrow.lab.report.results import Collection, collect
from regrow.lab.report.width_figures import Widths, width_grid, width_plate, widths_in
from regrow.lab.report.write import write_report
from regrow.lab.run.folder import find_runs
from regrow.lab.run.loop import Options, train

NETWORKS = ((8, "Dense", 0.0), (16, "SET", 0.75), (16, "Static", 0.75), (16, "Static", 0.5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense network of 768 weights in its block; one twice as wide with as many, and with twice as many."""
    root = tmp_path_factory.mktemp("widths")
    path = a_text(root)
    for width, name, sparsity in NETWORKS:
        for seed in (0, 1):
            model = {"name": "gpt", "width": width, "depth": 1, "heads": width // 8, "context": 8}
            method = {"name": name, **({} if name == "Dense" else {"sparsity": sparsity})}
            config = on(path, model=model, method=method, seed=seed, max_steps=2)
            train(config, root / "runs", Options(threads=1))
    return root / "runs"


@pytest.fixture(scope="module")
def collection(runs: Path) -> Collection:
    return collect(*find_runs([runs]))


@pytest.fixture(scope="module")
def found(collection: Collection) -> Widths:
    (one,) = widths_in(collection.experiments)
    return one


def test_networks_with_as_many_active_weights_are_compared_whatever_their_width(found: Widths):
    assert found.active == "768"
    cells = [[cell.text for cell in row[:3]] for row in width_grid(found).rows]
    assert cells == [["8", "Full dense", ""], ["16", "SET", "0.75"], ["16", "Static", "0.75"]]
    assert {name: [group.family for group in line] for name, line in found.lines.items()} == {
        "SET": ["Full dense", "SET"],
        "Static": ["Full dense", "Static"],
    }


def test_the_figure_tells_every_value_and_the_table_the_deviation(found: Widths):
    (picture,) = width_plate(found).pictures
    dense = found.groups[0]
    assert f"Full dense at width 8: {dense.score.text(dense.median)}" in picture.alt
    assert picture.svg.count("<circle") == 3
    assert width_grid(found).rows[0][-1].text == dense.score.spread(dense.mean, dense.sd)


def test_one_width_is_no_comparison(collection: Collection):
    assert not widths_in([experiment for experiment in collection.experiments if experiment.config.model.width == 16])


def test_the_page_begins_with_it(runs: Path, tmp_path: Path):
    page = write_report([runs], tmp_path).page.read_text()
    assert "Width at 768 active weights: gpt on a.txt" in page
    assert len(list((tmp_path / "figures").glob("*width-768.svg"))) == 1
