"""What would be trained, with which settings, and how long that takes."""

import re
from pathlib import Path

from command_line import regrow
from example_runs import write_run

STATIC_AND_DSR = """
epochs = 3
sparsity = 0.9
grid.seed = [0, 1]

[[runs]]
method = "Static"

[[runs]]
method = "DSR"
"""


def experiment(folder: Path, toml: str = STATIC_AND_DSR) -> Path:
    file = folder / "mine.toml"
    file.write_text(toml)
    return file


def test_a_sweep_is_listed_with_lengths_and_counted(tmp_path: Path):
    """Static networks train twice as long as is said, as in the paper."""
    _, listed = regrow(f"sweep {experiment(tmp_path)} --dry-run", tmp_path / "runs")
    *runs, last = listed.splitlines()
    assert [line.split()[1:] for line in runs] == [["6", "epochs", "to", "do"]] * 2 + [["3", "epochs", "to", "do"]] * 2
    assert last == "4 runs, 0 done; no finished run tells yet how long they take"
    assert not (tmp_path / "runs").exists()


def test_what_is_left_is_estimated_by_runs_that_are_there(tmp_path: Path):
    """Three epochs took 15 minutes: two runs of six take 30 each. One that was stopped at its end takes no time."""
    file, runs = experiment(tmp_path), tmp_path / "runs"
    write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=3, seconds=900)
    write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=3, seed=1, finished=False)
    *listed, last = regrow(f"sweep {file} --dry-run", runs)[1].splitlines()
    assert [line.split("epochs")[1].strip() for line in listed] == ["to do", "to do", "done", "begun"]
    assert last == "4 runs, 1 done, about 60 min"
    last = regrow(f"sweep {file} --dry-run --jobs 2", runs)[1].splitlines()[-1]
    assert last == "4 runs, 1 done, about 30 min"


def test_an_estimate_says_of_how_many_it_is(tmp_path: Path):
    file, runs = experiment(tmp_path, f'{STATIC_AND_DSR}\n[[runs]]\nmethod = "SET"\ndata = "fashion_mnist"\n'), tmp_path
    write_run(runs, 97.0, method="DSR", sparsity=0.9, epochs=3, seconds=10)
    last = regrow(f"sweep {file} --dry-run", runs)[1].splitlines()[-1]
    assert last == "6 runs, 1 done, about 50 s for 3 of 5; no finished run tells of the others"


def test_what_others_start_from_is_listed_before_them(tmp_path: Path):
    file = experiment(tmp_path, 'method = "Gradual"\nsparsity = 0.9\n')
    listed = regrow(f"sweep {file} --dry-run", tmp_path)[1].splitlines()
    assert [("-dense-" in line, "-gradual-" in line) for line in listed] == [(True, False), (False, True), (False,) * 2]


def test_settings_can_be_seen_before_training(tmp_path: Path):
    code, told = regrow("train --method RigL --sparsity 0.9 --epochs 20 optimizer.lr=0.05 --dry-run", tmp_path)
    assert code == 0
    for line in (
        "RigL, .*LeNet-300-100 on MNIST",
        "method.distribution +erk",
        "method.until +75 +the paper's",
        "optimizer.lr +0: 0.05 +not the paper's",
        "epochs +20 +not the paper's",
        "lenet_300_100-mnist-rigl-0.9-seed0-[0-9a-f]{8} +20 epochs  to do",
        "1 run, 0 done",
    ):
        assert re.search(line, told), line
    assert list(tmp_path.iterdir()) == []
