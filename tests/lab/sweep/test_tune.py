"""regrow tune: a search on what is held out, the best trained on everything, and the test unread until then."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regrow.lab.cli.main import app
from regrow.lab.config import make_config
from regrow.lab.config.search import Search, read_searches
from regrow.lab.data import idx
from regrow.lab.run.folder import RunFolder
from regrow.lab.sweep.tune import Found, look_at, only_judged

EXPERIMENT = """
data = "toy_idx"
epochs = 1
batch_size = 4
stretch = 1.0
tune.optimizer.lr = [0.001, 0.01, 0.1]
grid.seed = [0, 1]
[[runs]]
method = "Dense"
[[runs]]
method = "SET"
grid.sparsity = [0.9]
"""


@pytest.fixture
def experiment(tmp_path: Path, toy: Path) -> Path:
    path = tmp_path / "search.toml"
    path.write_text(EXPERIMENT)
    return path


def tune(experiment: Path, *arguments: str) -> tuple[int, str]:
    runs = experiment.parent / "runs"
    result = CliRunner().invoke(app, ["tune", str(experiment), "--runs", str(runs), *arguments])
    return result.exit_code, " ".join(result.output.split())


def finished(search: Search, runs: Path) -> list[bool]:
    return [RunFolder(runs / choice.trial.id).has_finished(choice.trial) for choice in search.choices]


def test_the_test_is_unreadable_during_the_search_and_what_did_best_is_trained_when_it_is_there(
    experiment: Path, toy: Path
):
    hidden = {name: (toy / name).read_bytes() for name in idx.TEST_FILES}
    for name in hidden:
        (toy / name).unlink()
    code, said = tune(experiment)
    runs, searches = experiment.parent / "runs", read_searches(experiment)
    assert code == 1
    assert "nowhere to get it" in said  # in training on everything, which is tested
    assert [finished(search, runs) for search in searches] == [[True] * 3] * 2
    assert not any(RunFolder(runs / c.id).is_finished for s in searches for own in s.choices for c in own.configs)

    for name, content in hidden.items():
        (toy / name).write_bytes(content)
    code, said = tune(experiment)
    assert code == 0
    for search in searches:
        best, score = look_at(search, runs).best or (None, None)
        for choice in search.choices:
            assert [RunFolder(runs / config.id).is_finished for config in choice.configs] == [choice is best] * 2
            assert not list((runs / choice.trial.id).glob("*.safetensors"))
            assert len(list((runs / choice.configs[0].id).glob("*.safetensors"))) == 4 * (choice is best)
        assert f"{best} {score:.2f}" in said


def test_the_weights_of_a_trial_that_another_starts_from_are_kept():
    parent = make_config({"epochs": 1, "method": "Dense", "data": {"held_out": 0.1}})
    start = {"topology": "magnitude", "weights": "final", "run": {"method": "Dense"}}
    child = make_config({"epochs": 1, "method": "Static", "sparsity": 0.9, "data": {"held_out": 0.1}, "start": start})
    assert only_judged([parent, child]) == {child.id}


def test_a_dry_run_counts_what_there_is_to_do(experiment: Path):
    code, said = tune(experiment, "--dry-run", "--only", "dense")
    assert code == 0
    assert "3 runs, 0 done" in said
    assert said.endswith("then the best of each 3, on everything: 2 runs")
    assert "1 epochs to do lr=0.001" in said


def test_a_rate_at_which_training_goes_astray_has_no_score_and_the_best_of_other_methods_is_trained(experiment: Path):
    text = EXPERIMENT.replace("[0.001, 0.01, 0.1]", "[0.01, 1e20]")
    experiment.write_text(text.replace('"SET"', '"SET"\ntune.optimizer.lr = [1e20, 1e21]'))
    code, said = tune(experiment, "seed=0")
    runs, (dense, sparse) = experiment.parent / "runs", read_searches(experiment, ["seed=0"])
    assert code == 1
    assert "not finite" in said
    assert "1 of 2" in said
    assert "of 1 search no trial came to an end" in said
    best, _ = look_at(dense, runs).best or (None, None)
    assert best is dense.choices[0]
    assert RunFolder(runs / best.configs[0].id).is_finished
    assert look_at(sparse, runs).best is None


def test_where_every_trial_goes_astray_there_is_no_best(experiment: Path):
    code, said = tune(experiment, "optimizer.lr=[1e20,1e21]", "--only", "dense", "seed=0")
    assert code == 1
    assert "no trial came to an end, so there is no best" in said


def test_a_sweep_refuses_to_search(experiment: Path):
    result = CliRunner().invoke(app, ["sweep", str(experiment)])
    assert result.exit_code == 1
    assert "searches optimizer.lr; run it by `regrow tune`" in " ".join(result.output.split())


def found(experiment: Path, *scores: float | None) -> Found:
    return Found(read_searches(experiment)[0], scores)


def test_the_best_is_the_highest_accuracy_and_the_first_of_equal_ones(experiment: Path):
    assert str(found(experiment, 90.0, 95.0, 95.0).best[0]) == "lr=0.01"
    assert found(experiment, None, None, None).best is None


@pytest.mark.parametrize(
    ("scores", "edge"),
    [((90.0, 95.0, 92.0), []), ((95.0, 90.0, 90.0), ["optimizer.lr"]), ((90.0, 95.0, None), [])],
)
def test_a_best_at_an_edge_is_told(experiment: Path, scores, edge):
    assert found(experiment, *scores).at_edge == edge
