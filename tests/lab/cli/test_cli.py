"""The command line, as a user types it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regrow.lab.cli.main import app
from regrow.lab.config.component import components
from regrow.lab.report.benches import read_benches

SMALL = "--data synthetic --epochs 2 batch_size=200"


def regrow(line: str, root: Path | None = None) -> tuple[int, str]:
    where = ["--runs", str(root)] if root else []
    result = CliRunner().invoke(app, [*shlex.split(line), *where], env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_help_of_train_names_all_networks():
    _, text = regrow("train --help")
    ours = [name for name, cls in components("model").items() if cls.__module__.startswith("regrow.")]
    assert len(ours) > 5
    assert all(name in text for name in ours)


@pytest.mark.parametrize("command", ["train", "sweep", "report", "show", "data", "methods"])
def test_help_teaches_with_an_example(command: str):
    code, text = regrow(f"{command} --help")
    assert code == 0
    assert "Example" in text
    assert f"regrow {command}" in text


def test_train_says_where_the_run_is_and_show_shows_it(tmp_path: Path):
    code, said = regrow(f"train --method DSR --sparsity 0.9 {SMALL} method.period=4", tmp_path)
    assert code == 0
    folder = next(tmp_path.iterdir())
    assert str(folder) in said
    code, shown = regrow(f"show {folder}")
    assert code == 0
    assert "fc1" in shown


def test_a_compressed_run_trains_its_dense_run_first(tmp_path: Path):
    code, said = regrow(f"train -m Gradual -s 0.9 {SMALL}", tmp_path)
    assert code == 0
    assert len(re.findall("done: ", said)) == 2


def test_a_sweep_ends_with_a_table_and_a_report_can_be_made_of_it(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'data = "synthetic"\nepochs = 2\nbatch_size = 200\ngrid.seed = [0, 1]\n[[runs]]\nmethod = "Static"\n'
        'sparsity = 0.9\n[[runs]]\nmethod = "DSR"\nsparsity = 0.9\n'
    )
    code, listed = regrow(f"sweep {file} --dry-run seed=0", tmp_path / "runs")
    assert (code, listed.count("to do")) == (0, 2)
    code, said = regrow(f"sweep {file} --jobs 2 seed=0 --only dsr --only static", tmp_path / "runs")
    assert code == 0
    assert "DSR" in said
    assert "Static" in said
    code, page = regrow(f"report {tmp_path / 'runs'} --out {tmp_path / 'page'}")
    assert code == 0
    assert Path(page.strip()).read_text().startswith("<!doctype html")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train", "say which method"),
        ("train -m DSR -s 90", "did you mean 0.9"),
        ("train -m DSR -s 0.9 method.prun=3", "did you mean 'prune'"),
        ("train -m DSR -s 0.9 --data mnits", "did you mean 'mnist'"),
        ("train -m DSR -s 0.9 nonsense", "key=value"),
        ("train -m DSR -s 0.9 --device cuda:99", "CUDA"),
        ("train -m DSR -s 0.9 --device foo", "there is no device 'foo'"),
        ("train -m DSR -s 0.9 --model wrn_5_2", "depth must be 6n + 4"),
        ("sweep nothing.toml", "there is no experiment"),
        ("show nothing", "has no config.json"),
        ("report nothing", "there is no folder"),
        ("methods DRS", "did you mean 'DSR'"),
        ("data mnits", "did you mean 'mnist'"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_traceback(line: str, message: str, tmp_path: Path):
    code, said = regrow(line, tmp_path if line.startswith(("train", "sweep")) else None)
    assert code == 1
    assert message in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_threads_that_no_machine_has_are_refused(tmp_path: Path):
    code, said = regrow("train -m DSR -s 0.9 --threads 1000000000", tmp_path)
    assert code == 2
    assert re.search(r"Invalid value for '--threads'.*1024", said)
    assert list(tmp_path.iterdir()) == []


def test_messages_may_contain_brackets(tmp_path: Path):
    assert "[/foo]" in regrow("show 'nothing/[/foo]'")[1]
    code, said = regrow(f"train -m Dense {SMALL}", tmp_path / "odd[bold]")
    assert code == 0
    assert "odd[bold]" in said


def test_a_dry_run_lists_what_would_be_trained_first(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('method = "Gradual"\nsparsity = 0.9\n')
    assert "-dense-" in regrow(f"sweep {file} --dry-run", tmp_path)[1]


def test_methods_and_data_are_listed():
    _, listed = regrow("methods")
    assert all(name in listed for name in ("DSR", "SET", "DeepR", "RigL", "Gradual", "Hashed"))
    _, about = regrow("methods DSR")
    assert "Mostafa & Wang" in about
    assert "tolerance" in about
    assert "cifar10" in regrow("data")[1]


def test_the_library_does_not_import_the_lab():
    code = "import sys, regrow; sys.exit(any(name.startswith('regrow.lab') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    source = Path(__file__).parents[3] / "src" / "regrow"
    library = [p for p in source.rglob("*.py") if "lab" not in p.parts and p.name != "__main__.py"]
    assert not [path for path in library if "regrow.lab" in path.read_text()]


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "regrow", "--help"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
    )
    assert done.returncode == 0
    assert "Dynamic sparse training" in done.stdout


@pytest.mark.parametrize("command", ["lab", "overhead"])
def test_benchmarks_measure_every_case_and_keep_it(command: str, tmp_path: Path):
    kept = tmp_path / f"{command}.json"
    code, said = regrow(f"bench {command} --model lenet_300_100 --device cpu --quick --out {kept}")
    assert code == 0
    expected = ["plain loop"] if command == "lab" else ["Static", "SET", "DSR", "RigL", "DeepR"]
    assert all(word in said for word in expected)
    assert re.search(r"\d\.\d", said)
    measured = json.loads(kept.read_text())
    assert len(measured["rows"]) == len(expected)
    assert measured["provenance"]["torch"] == torch.__version__
    if command == "overhead":
        [bench], _ = read_benches([tmp_path])
        assert [row[0].text for row in bench.grid.rows] == expected[1:]


def test_a_benchmark_that_breaks_off_keeps_what_it_has_measured(tmp_path: Path):
    kept = tmp_path / "overhead.json"
    two = "--method DSR --method NoSuchMethod"
    code, said = regrow(f"bench overhead --model lenet_300_100 --device cpu --quick {two} --out {kept}")
    assert code == 1
    assert "NoSuchMethod" in said
    assert [row["method"] for row in json.loads(kept.read_text())["rows"]] == ["DSR"]


def test_nothing_is_measured_for_a_file_that_cannot_be_written(tmp_path: Path):
    code, said = regrow(f"bench lab --model lenet_300_100 --device cpu --quick --out {tmp_path}/none/lab.json")
    assert code == 1
    assert "make it first" in said
    assert "plain loop" not in said


def test_a_measurement_that_is_none_is_named(tmp_path: Path):
    (tmp_path / "overhead.json").write_text('{"rows": 3}')
    benches, [problem] = read_benches([tmp_path])
    assert not benches
    assert "overhead.json is not what `regrow bench overhead" in problem
