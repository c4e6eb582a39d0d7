"""TOML files that name many runs."""

from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regrow.lab.cli.main import app
from regrow.lab.config import make_config
from regrow.lab.config.experiment import expand, nest, parse_override, read_experiment
from regrow.lab.config.paper import merge
from regrow.lab.config.search import read_searches

EXPERIMENTS = sorted((Path(__file__).parents[3] / "experiments").glob("*.toml"))


def test_a_grid_is_every_combination():
    configs = expand({"grid": {"seed": [0, 1]}, "runs": [{"method": "DSR", "grid": {"sparsity": [0.9, 0.95]}}]})
    expected = [{"method": "DSR", "sparsity": s, "seed": seed} for seed in (0, 1) for s in (0.9, 0.95)]
    assert configs == [make_config(settings) for settings in expected]


def test_a_table_adds_to_what_holds_for_all():
    configs = expand(
        {
            "epochs": 20,
            "optimizer": {"momentum": 0.8},
            "runs": [{"method": "Dense"}, {"method": "SET", "sparsity": 0.9, "optimizer": {"nesterov": False}}],
        }
    )
    assert [config.method_name for config in configs] == ["Dense", "SET"]
    assert all(config.optimizer.momentum == 0.8 and config.epochs == 20 for config in configs)
    assert [config.optimizer.nesterov for config in configs] == [True, False]


def test_fields_of_a_method_can_be_varied_by_dotted_names():
    configs = expand({"method": "DSR", "sparsity": 0.9, "grid": {"method": {"prune": [100, 200]}}})
    assert [config.method["prune"] for config in configs] == [100, 200]


@pytest.mark.parametrize(
    ("grid", "override"),
    [
        ({"optimizer": {"momentum": [0.9, 0.5]}}, ("optimizer.momentum", 0.3)),
        ({"optimizer": {"momentum": [0.9, 0.5]}}, ("optimizer", {"momentum": 0.3})),
        ({"optimizer": [{"momentum": 0.9, "weight_decay": 0.1}]}, ("optimizer.momentum", 0.3)),
    ],
)
def test_an_override_wins_over_a_grid_however_both_are_written(grid: dict, override: tuple):
    (config,) = expand({"method": "DSR", "sparsity": 0.9, "grid": grid}, [override])
    assert config.optimizer.momentum == 0.3


def test_an_override_of_a_table_leaves_the_axes_it_does_not_speak_of():
    content = {"method": "DSR", "sparsity": 0.9, "grid": {"optimizer": {"momentum": [0.9, 0.5]}}}
    configs = expand(content, [("optimizer", {"weight_decay": 0.1})])
    assert [config.optimizer.momentum for config in configs] == [0.9, 0.5]
    assert {config.optimizer.weight_decay for config in configs} == {0.1}


def test_the_method_of_another_run_and_its_fields_are_told_in_any_order():
    told = ["start.topology=final", "start.run.method=DSR", "start.run.method.prune=300", "start.run.sparsity=.8"]
    for order in permutations(told):
        settings: dict = {"method": "Static", "sparsity": 0.9}
        for key, value in map(parse_override, order):
            settings = merge(settings, nest(key, value))
        assert make_config(settings).start.run == {"method": {"name": "DSR", "prune": 300, "sparsity": 0.8}}


def test_an_override_replaces_a_value_or_a_whole_axis():
    content = {
        "grid": {"seed": [0, 1, 2]},
        "runs": [{"method": "Dense"}, {"method": "DSR", "grid": {"sparsity": [0.9, 0.95]}}],
    }
    configs = expand(content, [("seed", 5), ("method.sparsity", [0.8, 0.99]), ("epochs", 10)])
    assert [(c.method_name, c.sparsity, c.seed, c.epochs) for c in configs] == [
        ("Dense", 0.0, 5, 10),
        ("DSR", 0.8, 5, 10),
        ("DSR", 0.99, 5, 10),
    ]


@pytest.mark.parametrize(
    ("content", "overrides", "message"),
    [
        ({"method": "DSR", "grid": {"sparsity": []}}, [], "has no runs"),
        ({"runs": []}, [], "has no runs"),
        ({"method": "DSR", "sparsity": 0.9, "grid": {"seed": [1, 1]}}, [], "more than once"),
        ({"method": "Dense", "grid": {"sparsity": [0.8, 0.9]}}, [], "more than once"),
        ({"method": "DSR", "grid": {"sparsity": 0.9}}, [], "grid.method.sparsity must be a list"),
        ({"method": "DSR", "sparsity": 0.9, "grid": 3}, [], "grid must be a table"),
        ({"method": "DSR", "sparsity": 0.9, "runs": {"seed": 1}}, [], r"\[\[runs\]\]"),
        ({"method": "DSR", "sparsity": 0.9}, [("seed", [0, 1])], "no grid of this experiment varies it"),
        (
            {"method": "DSR", "grid": {"seed": list(range(1000)), "sparsity": [n / 1000 for n in range(1000)]}},
            [],
            "has 1,000,000 runs, and 10,000 are the most",
        ),
        (
            {"runs": [{"method": "DSR", "sparsity": 0.9, "grid": {"seed": list(range(9000))}}] * 2},
            [],
            "has 18,000 runs",
        ),
        ({"method": "DSR", "sparsity": 0.9, "grid": {"sed": [0, 1]}}, [], "did you mean 'seed'"),
    ],
)
def test_bad_experiments_are_refused(content: dict, overrides: list, message: str):
    with pytest.raises(ValueError, match=message):
        expand(content, overrides)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ValueError, match="there is no experiment"):
        read_experiment(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("method = ")
    with pytest.raises(ValueError, match="is not TOML"):
        read_experiment(broken)
    broken.write_text('method = "Dense"')
    with pytest.raises(ValueError, match="written key=value"):
        read_experiment(broken, ["epochs"])


@pytest.mark.parametrize("depth", [40, 300, 100_000])
@pytest.mark.parametrize("key", ["optimizer", "data", "method", "runs", "grid.seed"])
def test_files_that_are_nested_too_deeply_are_named(depth: int, key: str, tmp_path: Path):
    nested = tmp_path / "nested.toml"
    for text in (f"{key} = {'[' * depth}{']' * depth}", f"{key}{'.a' * min(depth, 3000)} = 1"):
        nested.write_text(f"sparsity = 0.9\n{text}\n")
        told = CliRunner().invoke(app, ["sweep", str(nested), "--dry-run"])
        assert told.exit_code == 1
        assert isinstance(told.exception, SystemExit), text[:40]
        assert depth < 1000 or "[" not in text or str(nested) in told.stderr


@pytest.mark.parametrize("text", ["optimizer=" + "[" * 100_000, "optimizer" + ".a" * 3000 + "=1"])
def test_settings_that_are_nested_too_deeply_are_told(text: str):
    told = CliRunner().invoke(app, ["train", "-m", "Dense", text])
    assert told.exit_code == 1
    assert "nested too deeply" in told.stderr


@pytest.mark.parametrize("path", EXPERIMENTS, ids=[path.stem for path in EXPERIMENTS])
def test_the_experiments_that_come_with_the_project_can_be_read(path: Path):
    assert read_searches(path) if "\ntune." in path.read_text() else read_experiment(path)


def test_the_grid_of_the_paper_on_mnist():
    configs = read_experiment(EXPERIMENTS[0].parent / "lenet_mnist.toml")
    assert len(configs) == 5 * (1 + 9 * 6)
    assert {config.num_epochs for config in configs} == {40, 100, 200}
