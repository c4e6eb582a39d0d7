"""Runs are told apart by their labels: nothing but seed, sparsity and length is gathered under one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.lab.config import Config, make_config
from regrow.lab.config.component import Settings
from regrow.lab.config.paper import merge
from regrow.lab.report.labels import family, label, shared_departures, usual_departures
from regrow.lab.report.reference import reference_for
from regrow.methods.method import METHODS


def called(**settings: Any) -> str:
    return label(make_config({"sparsity": 0.9, **settings}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "Dense"}, "Full dense"),
        ({"method": "Dense", "width": "thin"}, "Thin dense"),
        ({"method": "Static"}, "Static"),
        ({"method": "Static", "stretch": 1}, "Static, 1x"),
        ({"method": "Gradual"}, "Compressed"),
        ({"method": "DSR"}, "DSR"),
        ({"method": "DSR", "model": "wrn_28_2"}, "DSR"),
        ({"method": {"name": "DSR", "granularity": "kernel"}}, "DSR, kernels"),
        ({"method": {"name": "DSR", "until": 50}}, "DSR, rewiring until epoch 50 of 100"),
        ({"method": {"name": "DSR", "until": None}}, "DSR, rewiring to the end"),
        ({"method": {"name": "DSR", "prune": 300}}, "DSR, prune 300"),
        ({"method": {"name": "SET", "distribution": "erk"}}, "SET, ERK"),
        ({"method": {"name": "DeepR", "scope": "network"}}, "DeepR, across layers"),
        ({"method": "RigL", "precision": "bfloat16"}, "RigL, bfloat16"),
        ({"method": {"name": "RigL", "fraction": 0.3}}, "RigL"),
        ({"method": "SET", "optimizer": {"momentum": 0.8}}, "SET, momentum 0.8"),
        ({"method": "SET", "optimizer": {"lr": 0.05}}, "SET, lr 0.05"),
        ({"method": "SET", "optimizer": {"lr": {0: 0.1, 30: 0.01}}}, "SET, lr 0.1 then 0.01 from epoch 30"),
        ({"method": {"name": "SET", "period": "2 epochs"}}, "SET, period 2 epochs"),
        ({"method": {"name": "SET", "distribution": {"fc1*": 0.5}}}, "SET, distribution 0.5 in fc1*"),
        ({"method": "SET", "batch_size": 50, "clip": 1.0}, "SET, batch size 50, clip 1"),
        ({"method": "SET", "optimizer": {"nesterov": False}}, "SET, nesterov off"),
        (
            {"method": "SET", "optimizer": {"name": "AdamW", "betas": [0.9, 0.95], "lr": 0.002}},
            "SET, AdamW, betas 0.9/0.95, lr 0.002",
        ),
        (
            {
                "model": "vgg_19",
                "data": "cifar10",
                "epochs": 3,
                "batch_size": 100,
                "method": "SET",
                "optimizer": {"lr": 0.1},
            },
            "SET, lr 0.1",
        ),
    ],
)
def test_a_label_is_the_papers_name_and_what_departs_from_the_paper(settings: Settings, expected: str) -> None:
    assert called(**settings) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"topology": "final", "run": {"method": "DSR"}}, "DSR topology, fresh weights"),
        ({"topology": "final", "weights": "initial", "run": {"method": "DSR"}}, "DSR topology, initial weights"),
        ({"topology": "counts", "run": {"method": "DSR"}}, "random topology, DSR counts"),
        (
            {"topology": "final", "run": {"method": {"name": "DSR", "granularity": "kernel"}}},
            "(DSR, kernels) topology, fresh weights",
        ),
        ({"topology": "final", "run": {"method": "DSR", "seed": 3}}, "(DSR, seed 3) topology, fresh weights"),
        ({"weights": "initial", "run": {"method": "Dense"}}, "Static, random topology, initial weights of Full dense"),
    ],
)
def test_controls_are_called_by_what_they_take_from_the_other_run(start: Settings, expected: str) -> None:
    assert called(method="Static", start=start) == expected


def test_a_control_that_rewires_says_so() -> None:
    start = {"topology": "final", "run": {"method": "DSR"}}
    assert called(method="SET", start=start) == "SET, DSR topology, fresh weights"


def test_fields_of_the_same_name_are_told_apart() -> None:
    settings = {"method": "SNFS", "sparsity": 0.9}
    labels = [label(make_config({**settings, **more})) for more in ({"optimizer": {"momentum": 0.5}}, {})]
    labels.append(label(make_config({"method": {"name": "SNFS", "sparsity": 0.9, "momentum": 0.5}})))
    assert labels == ["SNFS, optimizer momentum 0.5", "SNFS", "SNFS, momentum 0.5"]


def test_what_all_runs_share_is_said_once() -> None:
    configs = [make_config({"method": m, "sparsity": 0.9, "precision": "bfloat16"}) for m in ("DSR", "SET")]
    shared = shared_departures(configs)
    assert shared == ["bfloat16"]
    assert [label(config, without=shared) for config in configs] == ["DSR", "SET"]


def test_how_first_weights_are_scaled_is_no_matter_of_the_method() -> None:
    scaled = [make_config({"method": m, "sparsity": 0.9, "start": {"rescale": "density"}}) for m in ("DSR", "SET")]
    assert shared_departures(scaled) == ["first weights scaled"]
    plain = make_config({"method": "RigL", "sparsity": 0.9})
    usual = usual_departures([*scaled, plain])
    assert [label(config, usual=usual) for config in (scaled[0], plain)] == ["DSR", "RigL, first weights as drawn"]


def test_what_most_runs_share_is_said_of_those_that_do_not() -> None:
    slow = {"sparsity": 0.9, "optimizer": {"lr": 0.05}}
    configs = [make_config({"method": name, **slow}) for name in ("Static", "SET", "DSR")]
    configs.append(make_config({"method": "DSR", "sparsity": 0.9}))
    usual = usual_departures(configs)
    assert usual == {"optimizer.lr": "lr 0.05"}
    assert shared_departures(configs) == []
    assert [label(config, usual=usual) for config in configs] == ["Static", "SET", "DSR", "DSR, the paper's lr"]


def test_half_of_the_runs_are_not_most_and_seeds_are_no_majority() -> None:
    configs = [make_config({"method": "DSR", "sparsity": 0.9, "optimizer": {"lr": 0.05}, "seed": i}) for i in range(5)]
    assert usual_departures([*configs, make_config({"method": "DSR", "sparsity": 0.9})]) == {}


def test_of_another_optimizer_only_the_name_is_said() -> None:
    """What is no AdamW has none of its fields, either."""
    adam = {"sparsity": 0.9, "optimizer": {"name": "AdamW", "lr": 0.002, "weight_decay": 0.1}}
    configs = [make_config({"method": name, **adam}) for name in ("SET", "RigL")]
    as_in_the_paper = make_config({"method": "DSR", "sparsity": 0.9})
    usual = usual_departures([*configs, as_in_the_paper])
    assert list(usual) == ["optimizer.lr", "optimizer.name", "optimizer.weight_decay"]
    assert label(as_in_the_paper, usual=usual) == "DSR, the paper's optimizer"
    less_decay = make_config({"method": "DSR", "sparsity": 0.9, "optimizer": {"name": "AdamW", "lr": 0.002}})
    assert label(less_decay, usual=usual) == "DSR, default weight decay"


def test_a_one_is_not_all() -> None:
    counts = [called(method={"name": "DSR", "prune": prune}) for prune in (1, 1.0)]
    assert counts == ["DSR, prune 1", "DSR, prune 1.0"]


PARTS: list[list[Settings]] = [
    [{"method": {"name": name}} for name in sorted(METHODS)],
    [{}, {"width": 0.5}],
    [{}, {"stretch": 1.0}, {"stretch": 2.0}, {"stretch": 0.5}],
    [{}, {"precision": "bfloat16"}],
    [{}, {"batch_size": 50}, {"batch_size": 128}],
    [{}, {"optimizer": {"momentum": 0.5}}, {"optimizer": {"nesterov": False}}, {"optimizer": {"weight_decay": 1e-4}}],
    [{}, {"optimizer": {"lr": {0: 0.1}}}, {"optimizer": {"lr": {0: 0.1, 30: 0.01}}}],
    [{}, {"written_for": 80}],
    [{}, {"method": {"until": 35}}, {"method": {"until": 30}}],
    [{}, {"method": {"l1": 0.0}}, {"method": {"l1": 1e-3}}],
    [{}, {"method": {"period": 50}}, {"method": {"period": {0: 100, 30: 50}}}],
    [{}, {"method": {"distribution": "erk"}}, {"method": {"distribution": {"fc1*": 0.5}}}],
    [
        {},
        {"start": {"topology": "magnitude", "weights": "fresh", "run": None}},
        *(
            {"start": {"topology": topology, "weights": weights, "run": run}}
            for topology in ("random", "magnitude", "final", "counts")
            for weights in ("initial", "final")
            for run in ({"method": "DSR"}, {"method": "SET"}, {"method": {"name": "DSR", "prune": 5}}, "some-run")
        ),
    ],
]


def combine(parts: list[Settings]) -> Settings:
    combined: Settings = {}
    for part in parts:
        combined = merge(combined, part)
    return combined


def meaning(config: Config) -> Settings:
    """What must not differ under one label."""
    settings = config.settings()
    defaults = {name: field.default for name, field in METHODS[config.method_name].__dataclass_fields__.items()}
    defaults["until"] = None  # the default is in steps
    method = {**defaults, **settings["method"], "sparsity": None}
    return {**settings, "method": method, "seed": 0, "epochs": 0}


choices = st.tuples(*(st.sampled_from(part) for part in PARTS))
variations = choices.map(lambda parts: combine(list(parts)))


@settings(max_examples=300, deadline=None)
@given(choices, choices, st.sets(st.integers(0, len(PARTS) - 1), max_size=2))
def test_runs_share_a_label_exactly_if_they_mean_the_same(
    one: tuple[Settings, ...], another: tuple[Settings, ...], changed: set[int]
) -> None:
    two = [another[i] if i in changed else part for i, part in enumerate(one)]
    first = make_config({"sparsity": 0.9, "seed": 0, **combine(list(one))})
    second = make_config({"sparsity": 0.5, "seed": 4, **combine(two)})
    assert (label(first) == label(second)) == (meaning(first) == meaning(second))


@settings(max_examples=100, deadline=None)
@given(st.lists(variations, min_size=2, max_size=5))
def test_what_labels_leave_unsaid_confuses_no_runs(several: list[Settings]) -> None:
    configs = [make_config({"sparsity": 0.9, **variation}) for variation in several]
    shared, usual = shared_departures(configs), usual_departures(configs)
    short = [label(config, shared, usual) for config in configs]
    whole = [label(config) for config in configs]
    assert [short.index(text) for text in short] == [whole.index(text) for text in whole]


@given(variations)
@settings(max_examples=50, deadline=None)
def test_a_label_does_not_depend_on_seed_sparsity_and_length(variation: Settings) -> None:
    written = {"written_for": variation.get("written_for", make_config({"sparsity": 0.9, **variation}).written_for)}
    configs = [
        make_config(
            merge({**written, "epochs": epochs, "seed": seed}, merge(variation, {"method": {"sparsity": sparsity}}))
        )
        for epochs, seed, sparsity in ((100, 0, 0.9), (10, 3, 0.5))
    ]
    assert label(configs[0]) == label(configs[1])


def test_every_method_has_a_family_of_its_own() -> None:
    names = [family(make_config({"method": name, "sparsity": 0.9})) for name in METHODS]
    assert len(set(names)) == len(names)


def test_references_are_for_the_papers_sparsities_and_plain_methods_only() -> None:
    known = reference_for("wrn_28_2", "cifar10", "SET", 0.9)
    assert known is not None
    assert (known.mean, known.sd) == (93.28, 0.12)
    assert reference_for("wrn_28_2", "cifar10", "SET", 0.85) is None
    assert reference_for("wrn_28_2", "cifar10", "SET, ERK", 0.9) is None
    assert reference_for("wrn_28_2", "mnist", "SET", 0.9) is None
    dense = reference_for("wrn_28_2", "cifar10", "Full dense", None)
    assert dense is not None
    assert dense.mean == 94.70
