"""Commands: what they do, say and refuse."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import regrow
from example_runs import write_run

from regrow import METHODS, __version__
from regrow.lab.config.component import components
from regrow.lab.report.benches import read_benches

SMALL = "--data synthetic --epochs 2 batch_size=200"


def test_help_of_train_names_all_networks():
    _, text = regrow("train --help")
    ours = [name for name, cls in components("model").items() if cls.__module__.startswith("regrow.")]
    assert len(ours) > 5
    assert all(name in text for name in ours)


@pytest.mark.parametrize(
    "command", ["train", "sweep", "tune", "report", "show", "data", "methods", "export", "describe"]
)
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
    _, again = regrow(f"train --method DSR --sparsity 0.9 {SMALL} method.period=4", tmp_path)
    assert f"{folder.name}  already done: " in again
    code, shown = regrow(f"show {folder}")
    assert code == 0
    assert "fc1" in shown


def test_a_run_is_shown_by_its_id_or_a_part_of_it(tmp_path: Path):
    first, second = (write_run(tmp_path / place, 97.0, method="DSR", sparsity=0.9, epochs=4, seed=seed).name
                     for seed, place in enumerate((".", "below")))  # fmt: skip
    for part in (first, first[-8:], "seed0", f"{tmp_path}/{first}"):
        assert first in regrow(f"show {part}", tmp_path)[1]
    assert second in regrow(f"show {second[-8:]}", tmp_path)[1]
    code, said = regrow("show dsr", tmp_path)
    assert code == 1
    assert f"2 runs below {tmp_path} have 'dsr' in their id, say more of it: below/{second}, {first}" in said
    assert "has no config.json" in regrow(f"show {tmp_path / 'below'}")[1]


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
        ("show nothing", "there is no run 'nothing' below runs"),
        ("train -m DSR -s 0.9 lr=0.1", "a run has no field 'lr'; say optimizer.lr=0.1"),
        ("train -m DSR sparsity=[0.9,0.95]", "write grid.sparsity = [0.9, 0.95] in an experiment"),
        ("report nothing", "there is no folder"),
        ("methods DRS", "did you mean 'DSR'"),
        ("data mnits", "did you mean 'mnist'"),
        (
            "bench lab --model vgg_19",
            "no network of the paper, whose schedule is measured; say lenet_300_100",
        ),
        ("bench overhead --model gpt", "gpt is no network of the paper"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_traceback(line: str, message: str, tmp_path: Path):
    code, said = regrow(line, tmp_path if line.startswith(("train", "sweep")) else None)
    assert code == 1
    assert message in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train -m DSR -s 0.9 --lr 0.1", "there is no option --lr; say optimizer.lr=0.1"),
        ("train --momentum=0.8", "there is no option --momentum; say optimizer.momentum=0.8 or method.momentum=0.8"),
        ("train -m DSR -s 0.9 --batch-size 50", "there is no option --batch-size; say batch_size=50"),
        ("train -m DSR -s 0.9 --until", "there is no option --until; say method.until=..."),
        ("sweep mine.toml --seed 3", "there is no option --seed; say seed=3"),
    ],
)
def test_a_setting_given_as_an_option_is_answered_with_how_to_say_it(line: str, message: str, tmp_path: Path):
    assert regrow(line, tmp_path) == (2, f"error: {message}\n")
    assert "No such option: --loss" in regrow("train -m DSR --loss 3", tmp_path)[1]


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    code, said = regrow("train -m DSR -s 0.9 --device cuda:2", tmp_path)
    assert (code, said) == (1, "error: there is no cuda:2 here, but cuda:0 to cuda:1\n")


def test_the_version_is_told():
    assert regrow("--version") == (0, f"regrow {__version__}\n")


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


def test_methods_are_listed_with_the_defaults_that_matter_in_comparisons():
    _, listed = regrow("methods")
    rows = {line.split()[0]: line.split()[1:4] for line in listed.splitlines() if line[1:2].isupper()}
    assert rows.keys() >= set(METHODS)
    assert rows["RigL"] == ["erk", "100", "None"]
    assert rows["DeepR"] == ["uniform", "1", "None"]
    assert rows["GraNet"] == ["erk", "100", "10,000"]
    assert rows["Static"][0] == "uniform"
    assert "10,000" not in " ".join(rows["Static"])


def test_a_method_is_told_with_its_fields(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regrow.lab.cli.look.out.width", 200)
    _, about = regrow("methods RigL")
    assert "Evci et al." in about
    assert re.search("fraction +0.3 +of each layer's units at step 0, falling to none at `until`", about)
    assert re.search("distribution +erk +how the budget is shared", about)
    assert re.search("sparsity +the fraction of positions", about)


def test_data_sets_are_listed():
    assert "cifar10" in regrow("data")[1]


def test_the_library_does_not_import_the_lab():
    code = "import sys, regrow; sys.exit(any(name.startswith('regrow.lab') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
