"""What a run is: settings over the paper's defaults, points in time, and ids that never change."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regrow
from regrow.lab.config import Config, make_config, parent_of, read_config
from regrow.lab.config.paper import merge, settings_for
from regrow.lab.config.schedule import Timetable
from regrow.lab.models import read_model


def test_the_papers_settings_are_the_defaults():
    config = make_config({"method": "DSR", "sparsity": 0.99})
    assert (str(config.model), str(config.data), config.num_epochs, config.batch_size) == (
        "lenet_300_100",
        "mnist",
        100,
        100,
    )
    assert config.learning_rate.values == {0: 0.1, 25: 0.02, 50: 0.004, 75: 0.0008}
    assert config.make_method(steps_per_epoch=600) == regrow.DSR(
        sparsity=0.99, prune=600, period={0: 100, 15_000: 200, 30_000: 400, 45_000: 800}, until=54_000, l1=1e-4
    )
    wide = make_config({"model": "wrn_28_2", "method": "DSR", "sparsity": 0.9})
    assert (str(wide.data), wide.num_epochs, wide.optimizer.weight_decay) == ("cifar10", 200, 5e-4)
    assert wide.method["prune"] == 20_000


def test_schedules_stretch_with_the_training():
    short = make_config({"method": "DSR", "sparsity": 0.99, "epochs": 20})
    assert short.timetable(600).steps(short.learning_rate.values) == {0: 0.1, 3000: 0.02, 6000: 0.004, 9000: 0.0008}
    assert short.make_method(600).until == 18 * 600


def test_the_papers_schedules_fit_below_ones_written_for_another_length():
    mine = {"method": "DSR", "sparsity": 0.9, "epochs": 30, "written_for": 30, "optimizer": {"lr": {0: 0.1, 20: 0.01}}}
    config = make_config(mine)
    assert config.timetable(100).steps(config.learning_rate.values) == {0: 0.1, 2000: 0.01}
    assert config.make_method(100).until == 2700  # 90 of 100 epochs


def test_what_rewires_now_and_then_stops_at_three_quarters_where_neither_the_paper_nor_anybody_says_when():
    words = {
        "model": "gpt",
        "data": "enwik8",
        "batch_size": 4,
        "sparsity": 0.9,
        "learning_rate": {"name": "constant", "peak": 1},
    }
    for name in ("SET", "DSR", "RigL", "SNFS", "MEST", "GraNet", "Gradual"):
        config = make_config({**words, "method": name, "max_steps": 1000})
        assert config.make_method(steps_per_epoch=100).until == 750
        told = {"name": name, "until": 500}
        assert make_config({**words, "method": told, "max_steps": 1000}).make_method(100).until == 500
    assert make_config({**words, "method": "DeepR", "max_steps": 1000}).make_method(100).until is None
    for name, epoch in (("MEST", 75), ("SET", 90)):
        assert make_config({"method": name, "sparsity": 0.9}).make_method(600).until == epoch * 600


def test_static_and_thin_networks_train_twice_as_long():
    static = make_config({"method": "Static", "sparsity": 0.9, "epochs": 20})
    thin = make_config({"method": "Dense", "width": "thin", "sparsity": 0.9, "epochs": 20})
    assert static.num_epochs == thin.num_epochs == 40
    assert static.timetable(600).steps(static.learning_rate.values)[2 * 9000] == 0.0008
    wide = make_config({"model": "wrn_28_2", "method": "Static", "sparsity": 0.9})
    by_step = wide.timetable(500).steps(wide.learning_rate.values)
    assert by_step == {
        0: 0.1,
        60_000: 0.02,
        110_000: 0.004,
        175_000: 0.0008,
    }


def test_a_compressed_run_goes_on_from_the_dense_run_of_its_seed():
    compressed = make_config({"method": "Gradual", "sparsity": 0.9, "seed": 3, "epochs": 50})
    dense = make_config({"method": "Dense", "seed": 3, "epochs": 50})
    assert parent_of(compressed) == dense
    assert parent_of(dense) is None
    assert compressed.num_epochs == 20
    method = compressed.make_method(600)
    assert (method.period, method.until) == (600, 6000)


def test_a_ticket_names_the_run_it_starts_from_by_its_settings():
    ticket = make_config(
        {
            "method": "Static",
            "sparsity": 0.9,
            "start": {"topology": "final", "weights": "initial", "run": {"method": "DSR", "seed": 7}},
        }
    )
    assert parent_of(ticket) == make_config({"method": "DSR", "sparsity": 0.9, "seed": 7})


@pytest.mark.parametrize(
    ("settings", "id_"),
    [
        ({"method": "DSR", "sparsity": 0.99}, "lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b"),
        ({"method": "Dense", "seed": 1, "epochs": 20}, "lenet_300_100-mnist-dense-seed1-c6a6214a"),
        (
            {"method": "Dense", "width": "thin", "sparsity": 0.9},
            "lenet_300_100-mnist-thin-0.9-seed0-1d469a38",
        ),
        ({"model": "wrn_28_2", "method": "SET", "sparsity": 0.9}, "wrn_28_2-cifar10-set-0.9-seed0-ea9cab64"),
    ],
)
def test_ids_are_pinned(settings: dict, id_: str):
    """If this fails, every result obtained so far is orphaned: change the code, not the test."""
    assert make_config(settings).id == id_


def test_ids_of_all_runs_that_are_kept_are_what_their_settings_make():
    kept = sorted((Path(__file__).parents[3] / "results").glob("*/*/config.json"))
    assert len(kept) > 300
    for path in kept:
        saved = json.loads(path.read_text())
        config = read_config(saved["config"])
        assert config.id == saved["id"] == path.parent.name
        assert read_config(json.loads(json.dumps(config.settings()))) == config


def test_an_id_ignores_what_changes_nothing_and_sees_what_does():
    base = make_config({"method": "DSR", "sparsity": 0.9})
    assert make_config({"method": {"name": "DSR", "sparsity": 0.9, "tolerance": 0.1}}).id == base.id
    assert make_config({"method": "DSR", "sparsity": 0.9, "optimizer": {"momentum": 0.9}}).id == base.id
    others = [{"seed": 1}, {"epochs": 99}, {"method": {"prune": 601}}, {"optimizer": {"momentum": 0.8}}]
    ids = {make_config(merge({"method": {"name": "DSR", "sparsity": 0.9}}, other)).id for other in others}
    assert len(ids | {base.id}) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "Static", "sparsity": 0.9}, {"method": "Static", "sparsity": 0.9, "stretch": 2}),
        (
            {"method": {"name": "DSR", "sparsity": 0.9, "until": 45}},
            {"method": {"name": "DSR", "sparsity": 0.9, "until": 45.0}},
        ),
        ({"method": "DSR", "sparsity": 0}, {"method": "DSR", "sparsity": 0.0}),
        (
            {"method": "Static", "sparsity": 0.9, "start": {"topology": "final", "run": {"method": "DSR"}}},
            {"method": "Static", "sparsity": 0.9, "start": {"topology": "final", "run": {"method": {"name": "DSR"}}}},
        ),
        (
            {"method": "Static", "sparsity": 0.9, "start": {"topology": "final", "run": {"method": "DSR"}}},
            {
                "method": "Static",
                "sparsity": 0.9,
                "start": {"topology": "final", "run": {"method": "DSR", "sparsity": 0.9}},
            },
        ),
        (
            {"method": "DSR", "sparsity": 0.9, "data": "folder:pictures"},
            {"method": "DSR", "sparsity": 0.9, "data": "folder:./pictures/"},
        ),
        (
            {"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": 1}},
            {"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": {"0": 1.0}}},
        ),
    ],
)
def test_the_same_settings_however_written_have_the_same_id(one: dict, other: dict):
    assert make_config(one).id == make_config(other).id


def test_a_parent_is_as_wide_as_its_child():
    narrow = make_config({"method": "Gradual", "sparsity": 0.9, "width": 0.5})
    parent = parent_of(narrow)
    assert parent is not None
    assert parent.width == 0.5


def test_a_parent_is_stored_as_its_child_unless_told_otherwise():
    def stored(parent: dict) -> str:
        start = {"topology": "final", "run": {"method": "DSR", **parent}}
        ticket = make_config({"method": "Static", "sparsity": 0.9, "storage": "packed", "start": start})
        found = parent_of(ticket)
        assert found is not None
        return found.storage

    assert stored({}) == "packed"
    assert stored({"storage": "dense"}) == "dense"


def test_sparsity_means_nothing_to_a_full_dense_run():
    assert make_config({"method": "Dense", "sparsity": 0.9}) == make_config({"method": "Dense"})


@pytest.mark.parametrize("model", ["lenet_300_100", "wrn_28_2", "resnet_50"])
@pytest.mark.parametrize("method", sorted(regrow.METHODS))
def test_a_config_survives_json(model: str, method: str):
    config = make_config({"model": model, "method": method, "sparsity": 0.9})
    again = read_config(json.loads(json.dumps(config.settings())))
    assert again == config
    assert again.id == config.id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "say which method"),
        ({"method": "DSR"}, "needs a sparsity"),
        ({"method": "DRS", "sparsity": 0.9}, "did you mean 'DSR'"),
        ({"method": "DSR", "sparsity": 90}, "did you mean 0.9"),
        ({"method": "DSR", "sparsity": 0.9, "epoch": 3}, "did you mean 'epochs'"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "prun": 3}}, "did you mean 'prune'"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"momentun": 3}}, "did you mean 'momentum'"),
        ({"method": "DSR", "sparsity": 0.9, "model": "lenet"}, "did you mean 'lenet_300_100'"),
        ({"method": "DSR", "sparsity": 0.9, "data": "mnits"}, "did you mean 'mnist'"),
        ({"method": "DSR", "sparsity": 0.9, "epochs": 0}, "epochs must be a whole number >= 1"),
        ({"method": "DSR", "sparsity": 0.9, "seed": 1.5}, "seed must be a whole number"),
        ({"method": "DSR", "sparsity": 0.9, "width": "thin"}, "for the method Dense"),
        ({"method": "DSR", "sparsity": 0.9, "width": 0}, "positive number"),
        *(
            ({"method": "DSR", "sparsity": 0.9, "width": width}, "width must be a positive number up to 100")
            for width in (1e300, 1e9, 101, -1.0, float("nan"), "wide")
        ),
        *(({"method": "DSR", "sparsity": 0.9, "seed": seed}, "less than 2") for seed in (2**64, 2**70)),
        ({"method": "DSR", "sparsity": 0.9, "seed": -1}, "seed must be a whole number >= 0"),
        ({"method": "DSR", "sparsity": 0.9, "precision": "half"}, "precision must be one of"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": {5: 0.1}}}, "must begin at epoch 0"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": {0: 0.1, 150: 0.01}}}, "changes at epoch 150"),
        ({"method": "DSR", "sparsity": 0.9, "epochs": 30, "optimizer": {"lr": {0: 0.1, 15: 0.01}}}, "written_for"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": "fast"}}, "must be a number or a table"),
        ({"method": "DSR", "sparsity": 0.9, "start": {"topology": "final"}}, "set start.run"),
        ({"method": "DSR", "sparsity": 0.9, "start": {"rescale": "fan_in"}}, "start.rescale must be one of 'density'"),
        ({"method": "DSR", "sparsity": 0.9, "start": {"moments": "old"}}, "start.moments must be one of 'clean'"),
        (
            {"method": "DSR", "sparsity": 0.9, "start": {"rescale": "density", "topology": "magnitude"}},
            "start.rescale is for weights as they were drawn",
        ),
        ({"method": "DSR", "sparsity": 0.9, "start": {"run": "some-id"}}, "set start.run"),
        ({"method": "DSR", "sparsity": 0.9, "start": "random"}, "start must be a table"),
        ({"method": "DSR", "sparsity": 0.9, "start": {"run": 3, "topology": "final"}}, "start.run must be an id"),
        ({"method": 1}, "method must be a table"),
        ({"method": ["DSR", "SET"]}, r"write grid.method = \['DSR', 'SET'\] in an experiment"),
        ({"method": "DSR", "sparsity": [0.9, 0.95]}, r"write grid.sparsity = \[0.9, 0.95\] in"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "prune": [1, 2]}}, r"write grid.method.prune = \[1, 2\]"),
        ({"method": "DSR", "sparsity": 0.9, "seed": [0, 1]}, r"seed is one value in a run, got \[0, 1\]"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"momentum": [0.8, 0.9]}}, "write grid.optimizer.momentum"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": [0.1, 0.2]}}, "write grid.optimizer.lr"),
        ({"method": "DSR", "sparsity": 0.9, "lr": 0.1}, "a run has no field 'lr'; say optimizer.lr=0.1"),
        ({"method": "DSR", "sparsity": 0.9, "period": 50}, "say method.period=50"),
        ({"method": {"name": [1]}}, "there is no method"),
        ({"method": "DSR", "sparsity": 0.9, "model": 3}, "model must be a name"),
        ({"method": "DSR", "sparsity": 0.9, "data": 1}, "data must be a name"),
        ({"method": "Dense", "width": "thin"}, "with a sparsity"),
        ({"method": {"name": "Gradual", "sparsity": 0.9, "until": 60}}, "between 0 and 40"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "until": "late"}}, "method.until must be an epoch"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "until": float("nan")}}, "method.until must be an epoch"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "period": "x epochs"}}, "written like '2 epochs'"),
        ({"method": {"name": "DSR", "sparsity": 0.9, "period": "-2 epochs"}}, "written like '2 epochs'"),
        ({"method": "DSR", "sparsity": 0.9, "stretch": float("inf")}, "stretch must be a positive number"),
        ({"method": "DSR", "sparsity": 0.9, "stretch": True}, "stretch must be a positive number"),
        ({"method": "DSR", "sparsity": 0.9, "width": float("inf")}, "width must be a positive number"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": -1}}, "lr must be numbers >= 0"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": True}}, "must be a number or a table"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": {0: 0.1, 50: "x"}}}, "lr must be numbers >= 0"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"momentum": "abc"}}, r"momentum must be in \[0, 1\)"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"momentum": 0}}, "false without momentum"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"nesterov": "no"}}, "nesterov must be true or false"),
        ({"method": "DSR", "sparsity": 0.9, "optimizer": {"weight_decay": -1}}, "weight_decay must be a number >= 0"),
    ],
)
def test_bad_settings_are_refused_with_the_next_step(settings: dict, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make_config(settings)


@given(st.integers(1, 400), st.integers(1, 1000), st.lists(st.floats(0, 99.9), max_size=5))
def test_points_in_time_keep_their_order_and_stay_inside(epochs: int, steps_per_epoch: int, times: list[float]):
    table = Timetable(epochs * steps_per_epoch, 100)
    steps = [table.step(time) for time in sorted(times)]
    assert steps == sorted(steps)
    assert all(0 <= step <= epochs * steps_per_epoch for step in steps)


def test_every_setting_of_the_paper_makes_a_config():
    for model in ("lenet_300_100", "wrn_28_2", "wrn_16_4", "resnet_50"):
        for method in regrow.METHODS:
            assert isinstance(make_config({"model": model, "method": method, "sparsity": 0.9}), Config)
        assert settings_for(read_model(model).paper, "Dense", is_thin=True)["stretch"] == 2.0
