"""Models, data, optimizers, learning rates and methods of other people: one file, brought by `--import`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regrow.lab.config import imports, make_config
from regrow.lab.config.component import component
from regrow.lab.learning_rates.learning_rate import LearningRate
from regrow.lab.run.folder import FORMAT, RunFolder, bring_again

MINE = {
    "tiny.py": """
from torch import nn
from regrow.lab.config.component import component
from regrow.lab.models import Model, Shape


class Net(nn.Sequential):
    def sparse_layers(self):
        return ["1.weight", "3.weight"]


@component
class Tiny(Model):
    name = "tiny"
    usual = Shape((1, 8, 8), 4)
    hidden: int = 12

    def build(self, inputs, width=1.0):
        hidden = max(1, round(self.hidden * width))
        return Net(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, inputs.num_classes))
""",
    "dots.py": """
from regrow.lab.config.component import component
from regrow.lab.data import NamedData, synthesize


@component
class Dots(NamedData):
    name = "dots"
    title = "dots"
    num_train: int = 400

    def open(self, device, root=None, progress=None):
        return synthesize(image_shape=(1, 8, 8), num_classes=4, num_train=self.num_train, num_test=100, device=device)
""",
    "plain.py": """
import torch
from regrow.lab.config.component import component
from regrow.lab.optimizers import Optimizer


@component
class Plain(Optimizer):
    name = "plain"
    dampening: float = 0.0

    def build(self, parameters, rate, device):
        return torch.optim.SGD(parameters, lr=rate, momentum=0.5, dampening=self.dampening)
""",
    "halving.py": """
from regrow.lab.config.component import component
from regrow.lab.learning_rates import LearningRate


@component
class Halving(LearningRate):
    name = "halving"
    first: float
    every: int = 10

    def rates(self, timetable, density):
        return lambda step: self.first * 0.5 ** (step // self.every)
""",
    "swap.py": """
from regrow.methods import Method, method


@method
class Swap(Method):
    \"\"\"Prune one weight of each layer, and grow one.\"\"\"

    until_only_stops = True

    def prune_counts(self, tally, step):
        return [min(1, free) for free in tally.free]
""",
}
"""A file for each kind of part."""
SETTINGS = ["data=dots", "batch_size=20", "optimizer=plain", "learning_rate.name=halving", "learning_rate.first=0.1"]
SETTINGS += ["model.name=tiny", "model.hidden=16", "method.period=3"]


@pytest.fixture
def mine(tmp_path: Path) -> list[Path]:
    for name, content in MINE.items():
        (tmp_path / name).write_text(content)
    return [tmp_path / name for name in MINE]


def brought(files: list[Path]) -> list[str]:
    """The options that bring them."""
    return [word for file in files for word in ("--import", str(file))]


def regrow(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regrow", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_of_imported_parts_survives_a_kill_and_goes_on_without_saying_them_again(
    tmp_path: Path, mine: list[Path]
):
    told = ["--method", "Swap", "--sparsity", "0.5", *SETTINGS, "--threads", "1"]
    whole = regrow(*brought(mine), "train", *told, "--epochs", "150", "--runs", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "regrow", *brought(mine), "train", *told, "--epochs", "150"]
    killed = subprocess.Popen([*command, "--save-every", "0.01"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("runs/*/checkpoint.pt")):
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    again = regrow("train", *told, "--epochs", "150", cwd=tmp_path)  # what it was begun with is in its folder
    assert again.returncode == 0, again.stderr
    (one,), (other,) = tmp_path.glob("runs/*"), tmp_path.glob("whole/*")
    assert one.name == other.name
    assert json.loads((one / "config.json").read_text())["imports"] == {
        str(file): imports.digest(file) for file in mine
    }
    for name in ("final_weights", "final_topology"):
        assert (one / f"{name}.safetensors").read_bytes() == (other / f"{name}.safetensors").read_bytes()


def test_a_sweep_brings_them_to_its_processes_and_a_report_asks_for_them(tmp_path: Path, mine: list[Path]):
    """Also where a run leaves its state to a branch, which is made of them as well."""
    toml = """
        imports = ["tiny.py", "dots.py", "plain.py", "halving.py", "swap.py"]
        model = {name = "tiny", hidden = 16}
        data = {name = "dots", num_train = 200}
        epochs = 2
        written_for = 2
        batch_size = 20
        optimizer = {name = "plain", dampening = 0.1}
        learning_rate = {name = "halving", first = 0.1}
        sparsity = 0.5
        [[runs]]
        method = {name = "Swap", period = 5}
        grid.method.until = [1, 2]
        [[runs]]
        method = "Static"
    """
    (tmp_path / "mine.toml").write_text(toml)
    done = regrow("sweep", "mine.toml", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Swap" in done.stdout
    summaries = [path.read_text() for path in tmp_path.glob("runs/tiny-dots-*/summary.json")]
    assert sorted("epochs 1 to 1 are those of" in text for text in summaries) == [False, False, True]
    refused = regrow("report", "runs", cwd=tmp_path)
    assert "made with regrow --import" in " ".join(refused.stderr.split()) + refused.stdout
    told = regrow(*brought(mine), "report", "runs", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "report" / "index.html").read_text()
    assert "tiny (hidden=16) on dots" in page


def test_a_run_whose_file_is_gone_is_in_nobodys_way(tmp_path: Path):
    there = tmp_path / "there.py"
    there.write_text("")
    begun = RunFolder(tmp_path / "runs" / "begun")
    begun.path.mkdir(parents=True)
    begun.write_json(
        "config.json", {"format": FORMAT, "imports": {"gone.py": "0", "no_such_module": "", str(there): "0"}}
    )
    bring_again(tmp_path / "runs")
    assert str(there) in imports.brought()


def test_what_cannot_be_imported_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no file .*absent\.py"):
        imports.bring("absent.py", tmp_path)
    with pytest.raises(ValueError, match="no module 'absent_module'"):
        imports.bring("absent_module")
    assert "absent_module" not in imports.brought()  # or workers would look for it


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ValueError, match="there is a learning_rate 'cosine' already"):

        @component
        class Again(LearningRate):
            name = "cosine"


def test_misspelt_components_and_fields_are_answered_with_the_nearest():
    base = {"method": "SET", "sparsity": 0.9, "learning_rate": {"name": "cosine", "peak": 0.1}}
    for settings, sentence in [
        ({"model": "lenet_300"}, "did you mean 'lenet_300_100'"),
        ({"model": {"hidden": 3}}, r"say which model has hidden: model\.name=\.\.\.; there are: gpt, .*lenet_300_100"),
        ({"model": "xyz"}, r"there are: gpt, .*; yours come with regrow --import FILE$"),
        ({"optimizer": "AdmW"}, "did you mean 'AdamW'"),
        ({"optimizer": "rmsprop"}, "did you mean 'RMSprop'"),
        ({"optimizer": {"name": "AdmW"}, "learning_rate": None}, "no optimizer 'AdmW'"),  # before what it would need
        ({"optimizer": {"name": "AdamW", "momentum": 0.9}}, "'momentum'; it has betas, eps, weight_decay$"),
        ({"start": {"rescal": "density"}}, "^start has no field 'rescal'; did you mean 'rescale'"),
        ({"optimizer": {"name": "Adagrad", "betas": [0.9, 0.9]}}, "it has eps, initial_accumulator_value"),
        ({"learning_rate": {"name": "cosin", "peak": 0.1}}, "did you mean 'cosine'"),
        ({"learning_rate": {"name": "cosine"}}, "needs peak"),
        ({"learning_rate": {"name": "cosine", "peak": 0.1, "warm_up": 3}}, "did you mean 'warmup'"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            make_config({**base, **settings})
