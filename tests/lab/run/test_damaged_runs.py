"""Folders of runs that something happened to: named, never overwritten, and no trouble for others."""

import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import small, stop_after
from typer.testing import CliRunner

from regrow.lab.cli.main import app
from regrow.lab.run.folder import BadRun, RunFolder, find_runs
from regrow.lab.run.loop import Options, train


@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.csv", "history.csv", "config.json"])
@pytest.mark.parametrize("how", ["cut short", "scrambled"])
def test_a_damaged_file_is_named_and_never_overwritten(name: str, how: str, tmp_path: Path):
    config = small()
    stop_after(15, config, tmp_path)
    path = tmp_path / config.id / name
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = content[:middle] if how == "cut short" else content[:middle] + b'"\0\xff' * 5 + content[middle + 15 :]
    path.write_bytes(damaged)
    with pytest.raises(BadRun, match=name):
        train(config, tmp_path, Options(threads=1))
    assert path.read_bytes() == damaged


def test_a_checkpoint_of_another_version_or_run_is_refused(tmp_path: Path):
    config = small()
    stop_after(5, config, tmp_path)
    path = tmp_path / config.id / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "id": "other"}, path)
    with pytest.raises(BadRun, match="belongs to another run, other"):
        train(config, tmp_path, Options(threads=1))
    del saved["format"]
    torch.save(saved, path)
    with pytest.raises(BadRun, match="another version of regrow"):
        train(config, tmp_path, Options(threads=1))


def test_a_folder_of_another_version_or_run_is_refused(run_small: Callable[..., Path], tmp_path: Path):
    folder = RunFolder(run_small())
    content = folder.read_json("config.json")
    folder.write_json("config.json", {**content, "format": 99})
    with pytest.raises(BadRun, match="format 99"):
        run_small()
    other = small(seed=5)
    folder.write_json("config.json", {**content, "config": other.settings()})
    with pytest.raises(BadRun, match="belongs to another run"):
        run_small()


def test_no_room_for_a_checkpoint_leaves_the_last_one(tmp_path: Path):
    config = small()
    stop_after(5, config, tmp_path)
    path = tmp_path / config.id / "checkpoint.pt"
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            train(config, tmp_path, Options(threads=1, save_every=0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.glob(".*")) == []
    train(config, tmp_path, Options(threads=1))


def test_damaged_runs_are_named_and_the_others_found(run_small: Callable[..., Path], tmp_path: Path):
    good, bad = run_small(), run_small(seed=1)
    (bad / "summary.json").write_text("{")
    short = run_small(seed=2)
    lines = (short / "metrics.csv").read_text().splitlines(keepends=True)
    (short / "metrics.csv").write_text("".join(lines[:-1]))
    runs, problems = find_runs([tmp_path])
    assert [run.config.id for run in runs] == [good.name]
    assert len(problems) == 2
    assert str(bad / "summary.json") in problems[0]
    assert "1 epochs of 2" in problems[1]


DAMAGE = {
    "summary.json": [
        "{",
        '{"format": 1, "accuracy": 90, "epochs": 2, "seconds": 1}',
        '{"format": 1, "accuracy": NaN, "epochs": 2, "steps": 20, "seconds": 1}',
    ],
    "config.json": ['{"format": 1, "config": null}'],
    "metrics.csv": ["epoch\n1\n"],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in DAMAGE.items() for text in texts])
def test_a_damaged_run_does_not_hide_the_results_of_others(
    name: str, content: str, trained_two: list[Path], tmp_path: Path
):
    experiment, runs = tmp_path / "two.toml", tmp_path / "runs"
    same = ["data=synthetic", "epochs=2", "batch_size=200", "method=DSR", "sparsity=0.9", "method.period=4"]
    experiment.write_text('method = "DSR"\ngrid.seed = [0, 1]\n')
    shutil.copytree(trained_two[0].parent, runs)
    bad = trained_two[1].name
    (runs / bad / name).write_text(content)
    sweep, report, again = (
        CliRunner().invoke(app, command)
        for command in (
            ["sweep", str(experiment), *same, "--runs", str(runs)],
            ["report", str(runs), "--out", str(tmp_path)],
            ["train", *same, "seed=1", "--runs", str(runs)],
        )
    )
    assert "DSR" in sweep.stdout
    for told in (sweep, report, again):
        assert told.exception is None or isinstance(told.exception, SystemExit)
        assert bad in told.stderr


def test_a_flipped_bit_of_the_final_network_is_found(run_small: Callable[..., Path], tmp_path: Path):
    folder = RunFolder(run_small())
    path = folder.file("final_weights.safetensors")
    content = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), 100):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(BadRun, match=r"final_weights\.safetensors is damaged"):
            folder.read_tensors("final_weights")
    told = CliRunner().invoke(app, ["export", str(folder.path), str(tmp_path / "out.pt")])
    assert (told.exit_code, "final_weights.safetensors is damaged" in told.stderr) == (1, True)


def test_networks_of_runs_from_before_there_were_checksums_are_read(run_small: Callable[..., Path]):
    folder = RunFolder(run_small())
    expected = load_file(folder.file("final_weights.safetensors"))
    save_file(expected, folder.file("final_weights.safetensors"))
    found = folder.read_tensors("final_weights")
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


NESTED = {
    "json": lambda depth: '{"format": 1, "config": ' + '{"a": ' * depth + "1" + "}" * depth + "}",
    "list": lambda depth: '{"format": 1, "config": {"method": ' + "[" * depth + "]" * depth + "}}",
}


@pytest.mark.parametrize("depth", [40, 250, 700, 100_000])
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_a_deeply_nested_file_is_named_by_every_command(kind: str, depth: int, name: str, trained_two: list[Path]):
    good, bad = trained_two
    kept = (bad / name).read_text()
    (bad / name).write_text(NESTED[kind](depth))
    try:
        runs, problems = find_runs([good.parent])
        assert [run.config.id for run in runs] == [good.name]
        assert [str(bad / name) in problem for problem in problems] == [True]
        commands = [["show", str(bad)], ["export", str(bad), str(bad.parent / "out.pt")]]
        for command in commands if name == "config.json" else commands[:1]:
            told = CliRunner().invoke(app, command)
            assert told.exit_code == 1
            assert isinstance(told.exception, SystemExit)
            assert str(bad / name) in told.stderr
        if name == "config.json":
            with pytest.raises(BadRun, match=r"config\.json"):
                train(small(seed=1), bad.parent, Options(threads=1))
    finally:
        (bad / name).write_text(kept)


def test_a_report_leaves_out_what_is_nested_too_deeply(trained_two: list[Path], tmp_path: Path):
    good, bad = trained_two
    kept = (bad / "summary.json").read_text()
    (bad / "summary.json").write_text("[" * 100_000)
    (bad / "overhead.json").write_text("[" * 100_000)
    told = CliRunner().invoke(app, ["report", str(good.parent), "--out", str(tmp_path)])
    (bad / "summary.json").write_text(kept)
    (bad / "overhead.json").unlink()
    assert told.exit_code == 0
    assert str(bad / "summary.json") in told.stderr
    assert str(bad / "overhead.json") in told.stderr


@pytest.fixture(scope="module")
def trained_two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(small(seed=seed), root, Options(threads=1))
    return [root / small(seed=seed).id for seed in (0, 1)]
