"""The report: run folders in, one page out."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from example_runs import write_examples, write_run

from regrow.lab.report.write import Report, write_report
from regrow.lab.run.folder import RunFolder, find_runs

VOID = {"meta", "link", "br", "img", "input", "use", "path", "rect", "line"}


class Checker(HTMLParser):
    """Tags close in the order they open; collects text, ids and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def read(report: Report) -> Checker:
    checker = Checker()
    checker.feed(report.page.read_text())
    assert not checker.open
    return checker


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_examples(root)
    return root


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report([runs], tmp_path_factory.mktemp("report"))


def test_the_page_says_what_is_seen(report: Report) -> None:
    text = " ".join(read(report).text.split())
    assert "Sparse training: LeNet-300-100 on MNIST" in text
    assert "21 runs: 4 methods at sparsity 0.95 and 0.99, 3 seeds each." in text
    assert "At sparsity 0.99 DSR comes first, median 97.40 % with 3.48 k parameters" in text
    assert "97.40 ± 0.20" in text
    assert "length differs" in text
    assert "What was run where" in text


def test_figures_and_csv_are_beside_it(report: Report) -> None:
    folder = report.page.parent
    links = [link for link in read(report).addresses if not link.startswith(("#", "data:"))]
    assert {"results.csv", "runs.csv"} < set(links)
    assert len(links) == 2 + 1 + 2 * 15  # results.csv is named twice
    for link in links:
        assert (folder / link).stat().st_size > 0
    with (folder / "results.csv").open() as file:
        lines = {(line["method"], line["sparsity"]): line for line in csv.DictReader(file)}
    assert lines["DSR", "0.99"]["accuracy_mean"] == "97.4"
    assert lines["DSR", "0.99"]["accuracy_sd"] == "0.2"
    assert report.num_runs == 21


def test_the_table_of_methods_comes_first(report: Report) -> None:
    page = report.page.read_text()
    assert page.index("Accuracy by method and sparsity") < page.index("<figure>") < page.index("All results")


def test_of_one_experiment_the_title_is_said_once(report: Report) -> None:
    assert read(report).text.count("LeNet-300-100 on MNIST") == 2  # in the head, and at the top


def test_shared_settings_are_said_where_there_is_no_table_of_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 98.0, method="Dense", epochs=2, batch_size=50)
    assert "All runs: batch size 50." in read(write_report([tmp_path / "runs"], tmp_path / "out")).text


def test_what_was_run_at_one_sparsity_has_nothing_to_choose(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 97.0, method="DSR", sparsity=0.9, epochs=2)
    page = write_report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert "<fieldset" not in page
    assert 'data-view="0"' in page


def test_the_page_needs_nothing_else(report: Report) -> None:
    page = report.page.read_text()
    namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert "http:" not in namespaces
    assert "https:" not in namespaces
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#", "", page)


def test_ids_are_unique(report: Report) -> None:
    ids = read(report).ids
    assert len(ids) == len(set(ids))


def test_the_same_runs_give_the_same_page(report: Report, runs: Path, tmp_path: Path) -> None:
    assert write_report([runs], tmp_path).page.read_bytes() == report.page.read_bytes()


def test_several_experiments_have_a_section_each(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 97.0, method="DSR", sparsity=0.9, epochs=2)
    write_run(tmp_path / "runs", 88.0, method="DSR", sparsity=0.9, epochs=2, data="fashion_mnist")
    page = read(write_report([tmp_path / "runs"], tmp_path / "out"))
    assert {"lenet-300-100-mnist", "lenet-300-100-fashion-mnist", "where"} <= set(page.ids)


def test_what_cannot_be_used_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=2)
    damaged = write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=2, seed=1)
    (damaged / "summary.json").write_text('{"format": 1')
    unfinished = write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=2, seed=2, finished=False)
    report = write_report([runs], tmp_path / "out")
    text = read(report).text
    assert f"{damaged.name}/summary.json is damaged" in text
    assert f"{unfinished.name}, 2 of 2 epochs" in text
    assert (report.num_runs, report.num_unfinished, len(report.problems)) == (1, 1, 1)


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    path = write_run(tmp_path / "runs", 97.0, method="DSR", sparsity=0.9, epochs=2, data=f"folder:{nasty}")
    summary = RunFolder(path).read_json("summary.json")
    summary["provenance"]["host"] = f'"{nasty}'
    RunFolder(path).write_json("summary.json", summary)
    page = write_report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert nasty not in page
    assert page.count("<script") == 1


def test_no_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no finished run in .*train some"):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_unfinished_runs_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2, finished=False)
    with pytest.raises(ValueError, match="1 not finished"):
        write_report([tmp_path], tmp_path / "out")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        write_report([tmp_path / "nowhere"], tmp_path / "out")


def test_the_results_that_come_with_the_project_are_whole():
    runs, problems = find_runs([Path(__file__).parents[3] / "results"])
    assert problems == []
    assert len(runs) > 90
    assert all(run.summary for run in runs)


def test_the_page_says_how_much_shorter_runs_were_than_their_references(tmp_path: Path):
    write_run(tmp_path / "runs", 96.0, method="DSR", sparsity=0.99, epochs=20)
    write_run(tmp_path / "runs", 40.0, method="Static", sparsity=0.99, epochs=20, stretch=1.0)
    text = write_report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert re.search(r"lasted 10\W% and 20\W% as long as those behind it", text)
