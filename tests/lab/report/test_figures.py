"""Figures show what the run folders say, in the same bytes each time."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_runs import with_provenance, write_examples, write_run

from regrow.lab.report import palette
from regrow.lab.report.canvas import Picture, Spot, paint, spots_along
from regrow.lab.report.figures import plates
from regrow.lab.report.labels import FAMILIES
from regrow.lab.report.layer_figures import final_densities, moves_weights, representatives, residual_groups
from regrow.lab.report.learning_figures import learning_curve, learning_plate
from regrow.lab.report.machines import on_one_machine
from regrow.lab.report.results import Experiment, collect
from regrow.lab.report.stopped import series_of, until, without_variants
from regrow.lab.run.folder import RunFolder, find_runs


def experiment_in(root: Path) -> Experiment:
    (experiment,) = collect(*find_runs([root])).experiments
    return experiment


def densities_in(root: Path) -> Picture:
    (picture,) = (p for plate in plates(experiment_in(root)) for p in plate.pictures if "densities" in p.name)
    return picture


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    root = tmp_path_factory.mktemp("runs")
    write_examples(root)
    return experiment_in(root)


@pytest.fixture(scope="module")
def pictures(examples: Experiment) -> dict[str, Picture]:
    return {picture.name: picture for plate in plates(examples) for picture in plate.pictures}


def test_there_is_a_figure_for_each_thing_to_see(pictures: dict[str, Picture]) -> None:
    names = [name.removeprefix("lenet-300-100-mnist-") for name in pictures]
    at_one_sparsity = ("test-accuracy", "time", "train-loss", "densities")
    assert names == [
        "accuracy-parameters",
        "accuracy-flops",
        "accuracy-parameters-close",
        "accuracy-flops-close",
        *(f"{name}-{sparsity}" for sparsity in ("0.99", "0.95") for name in at_one_sparsity),
        "layers-dsr-layer",
        "threshold",
        "rewired",
    ]


def test_figures_are_whole_svg_and_png_files(pictures: dict[str, Picture]) -> None:
    for picture in pictures.values():
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg")
        assert picture.png.startswith(b"\x89PNG")


def test_words_in_figures_are_text(pictures: dict[str, Picture]) -> None:
    svg = pictures["lenet-300-100-mnist-accuracy-parameters"].svg
    for word in ("DSR", "SET", "Static", "Full dense", "reference", "parameters"):
        assert f">{word}</text>" in svg


def test_the_same_data_give_the_same_bytes(examples: Experiment, pictures: dict[str, Picture]) -> None:
    again = {picture.name: picture for plate in plates(examples) for picture in plate.pictures}
    assert again == pictures


def test_a_figure_in_a_page_follows_its_colours_and_keeps_its_names_to_itself(pictures: dict[str, Picture]) -> None:
    picture = pictures["lenet-300-100-mnist-layers-dsr-layer"]
    inline = str(picture.inline())
    assert palette.INK.light not in inline
    assert "var(--ink)" in inline
    root = ElementTree.fromstring(inline)
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(names)) == len(names)
    assert all(str(name).startswith(picture.name) for name in names)


def test_the_alt_text_says_what_is_seen(pictures: dict[str, Picture]) -> None:
    assert "fc1.weight is sparsest (0.995)" in pictures["lenet-300-100-mnist-layers-dsr-layer"].alt
    assert "of DSR with" in pictures["lenet-300-100-mnist-accuracy-parameters"].alt


def test_only_methods_that_move_weights_between_layers_have_layers_to_show(examples: Experiment) -> None:
    (result,) = representatives(examples, moves_weights).values()
    assert (result.config.method_name, result.config.sparsity, result.config.seed) == ("DSR", 0.99, 1)


def test_residual_groups_add_up_their_layers(tmp_path: Path) -> None:
    write_run(tmp_path, 90.0, model="wrn_10_1", data="synthetic_colour", method="DSR", sparsity=0.9, epochs=2)
    (result,) = experiment_in(tmp_path).results
    groups = residual_groups(result)
    assert list(groups) == ["group 1", "group 2", "group 3"]
    sizes = {
        f"groups.{i}": (group, sum(y.positions for y in result.layers if y.name.startswith(f"groups.{i}.")))
        for i, group in enumerate(groups)
    }
    for prefix, (group, size) in sizes.items():
        active = sum(layer.active for layer in result.layers if layer.name.startswith(prefix))
        assert groups[group][-1] == pytest.approx(1 - active / size)


def test_learning_curves_are_medians_over_seeds(examples: Experiment) -> None:
    group = next(group for group in examples.groups if group.label == "DSR")
    curve = learning_curve(group.results, lambda row: row.get("test_accuracy"), "epoch")
    assert list(curve) == list(range(1, 11))
    assert curve[10] == pytest.approx(97.4)


def test_runs_that_stopped_early_are_drawn_against_when_they_did(tmp_path: Path) -> None:
    for epoch, accuracy in ((90, 97.6), (10, 96.9), (2, 95.1)):
        for seed in range(2):
            method = {"name": "DSR", "sparsity": 0.99, "until": epoch}
            write_run(tmp_path, accuracy + seed / 10, method=method, seed=seed, epochs=2)
    write_run(tmp_path, 84.9, method="Gradual", sparsity=0.99, epochs=2)
    experiment = experiment_in(tmp_path)
    (series,) = series_of(experiment)
    assert series.label == "DSR, sparsity 0.99"
    assert [until(group) for group in series.groups] == [2, 10, 90]
    picture = next(picture for plate in plates(experiment) for picture in plate.pictures if "stopped" in picture.name)
    assert "95.15 % until epoch 2, 97.65 % until 90" in picture.alt
    assert ">Compressed, sparsity 0.99</text>" in picture.svg


def test_there_they_are_and_not_in_the_other_figures_too(tmp_path: Path) -> None:
    """Only beside the one that stopped as in the paper: alone they are what there is to see."""
    for number in (2, 10):
        write_run(tmp_path, 95.0, method={"name": "DSR", "sparsity": 0.99, "until": number}, epochs=2)
    assert len(without_variants(experiment_in(tmp_path)).groups) == 2
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.99, epochs=2)
    assert [group.label for group in without_variants(experiment_in(tmp_path)).groups] == ["DSR"]


@pytest.mark.parametrize(
    "settings",
    [{"method": "Dense"}, {"method": "Static", "sparsity": 0.9}, {"method": "SET", "sparsity": 0.3}],
)
def test_one_run_alone_can_be_drawn(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_run(tmp_path, 97.0, epochs=1, **settings)
    assert plates(experiment_in(tmp_path))


def test_labels_are_not_taken_for_formulas() -> None:
    picture = paint("odd", "", "", lambda axes: axes.plot([0, 1], [0, 1], label="$x_1 <&> \\frac$") and ())
    assert "$x_1 &lt;&amp;&gt; \\frac$" in picture.svg


def y_marks(picture: Picture) -> list[str]:
    """The numbers along the y axis."""
    return re.findall(r'id="ytick_\d+">.*?<text[^>]*>([^<]*)</text>', picture.svg, flags=re.S)


def test_panels_of_a_row_have_one_y_range(pictures: dict[str, Picture], tmp_path: Path) -> None:
    prefix = "lenet-300-100-mnist"
    for one, other in (("accuracy-parameters", "accuracy-flops"), ("test-accuracy-0.95", "time-0.95")):
        assert y_marks(pictures[f"{prefix}-{one}"]) == y_marks(pictures[f"{prefix}-{other}"]) != []
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.99, epochs=4)
    write_run(tmp_path, 98.0, method={"name": "DSR", "prune": 5}, sparsity=0.9, epochs=4)
    layers = [plate for plate in plates(experiment_in(tmp_path)) if plate.title == "Layer sparsities emerging"]
    one, other = layers[0].pictures
    assert y_marks(one) == y_marks(other) != []


def test_where_lines_lie_close_together_they_are_shown_close_up(tmp_path: Path) -> None:
    for sparsity, lost in ((0.99, 1.5), (0.95, 0.0)):
        for accuracy, method in ((97.9, "DSR"), (97.8, "SET"), (97.7, "RigL")):
            write_run(tmp_path, accuracy - lost, method=method, sparsity=sparsity, epochs=2)
        write_run(tmp_path, 97.6 - 20 * lost, method="Static", sparsity=sparsity, epochs=2)
    _, close, *_ = plates(experiment_in(tmp_path))
    assert close.title == "Accuracy against size, close up"
    assert [picture.name.removeprefix("lenet-300-100-mnist-") for picture in close.pictures] == [
        "accuracy-parameters-close",
        "accuracy-flops-close",
    ]
    assert {float(mark) for mark in y_marks(close.pictures[0])} <= {x / 10 for x in range(940, 1000)}


def spots(picture: Picture) -> dict[str, tuple[float, float]]:
    """Where what is told."""
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="6"><title>(.*?)</title>', picture.svg)
    return {text: (float(x), float(y)) for x, y, text in found}


def markers(picture: Picture) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', picture.svg)]


def test_values_are_told_where_they_are_drawn(pictures: dict[str, Picture]) -> None:
    picture = pictures["lenet-300-100-mnist-accuracy-parameters"]
    told = spots(picture)
    assert {"DSR, 0.99: 97.40 %, median of 97.20 97.40 97.60", "DSR, 0.99: reference 97.75 ± 0.04"} < set(told)
    drawn = np.array(markers(picture))
    for text, place in told.items():
        if not text.startswith("Full dense"):  # a line
            assert np.abs(drawn - place).sum(axis=1).min() < 0.2, text


def test_every_figure_tells_values(pictures: dict[str, Picture]) -> None:
    assert all(spots(picture) for picture in pictures.values())
    assert "DSR, epoch 10: 97.40 %" in spots(pictures["lenet-300-100-mnist-test-accuracy-0.99"])
    assert "DSR, after 1 min 0 s 97.40 %" in spots(pictures["lenet-300-100-mnist-time-0.99"])
    assert "Static, fc3: 5 %" in spots(pictures["lenet-300-100-mnist-densities-0.95"])


def test_what_is_told_is_escaped_and_nothing_is_told_outside_the_axes() -> None:
    def draw(axes: Any) -> list[Spot]:
        axes.set(xlim=(0, 1), ylim=(0, 1))
        return [Spot(0.5, 0.5, "<b> & c"), Spot(0.5, 1.5, "above"), Spot(float("nan"), 0.5, "nowhere")]

    assert list(spots(paint("odd", "", "", draw))) == ["&lt;b&gt; &amp; c"]


def test_of_a_long_line_some_values_are_told_and_the_last_one() -> None:
    told = spots_along(range(1000), range(1000), lambda x, y: f"{x:g}")
    assert len(told) <= 24
    assert told[-1].text == "999"
    assert [spot.text for spot in spots_along([1, 2], [3, 4], lambda x, y: f"{x:g}: {y:g}")] == ["1: 3", "2: 4"]


def test_each_run_is_a_dot(pictures: dict[str, Picture], tmp_path: Path) -> None:
    pale = re.findall(r"<use [^>]*fill-opacity: 0.45", pictures["lenet-300-100-mnist-accuracy-parameters"].svg)
    assert len(pale) == 18  # three methods, two sparsities, three seeds


def test_variants_are_told_apart_in_every_figure(tmp_path: Path) -> None:
    for prune in (100, 200, 300, 400, 500, 700):
        write_run(tmp_path, 97.0, method={"name": "DSR", "prune": prune}, sparsity=0.9, epochs=2)
    found = palette.looks(experiment_in(tmp_path))
    assert len(found) == 6
    assert len({its_look.colour for its_look in found.values()}) == 1
    assert len({its_look.dashes for its_look in found.values()}) == 6
    assert len({its_look.dot for its_look in found.values()}) == 6
    (rewired,) = (p for plate in plates(experiment_in(tmp_path)) for p in plate.pictures if "rewired" in p.name)
    assert ">DSR, prune 100, sparsity 0.9</text>" in rewired.svg


def test_methods_without_a_colour_of_their_own_are_told_apart_like_variants(examples: Experiment) -> None:
    families = ["Mine", "Yours", "Mine"]
    groups = [replace(examples.groups[-1], family=family, label=f"{family}, {i}") for i, family in enumerate(families)]
    found = list(palette.looks(replace(examples, groups=groups)).values())
    assert {its_look.colour for its_look in found} == {palette.OTHER}
    assert len({(its_look.marker, its_look.dashes, its_look.dot) for its_look in found}) == 3


def test_legends_say_long_labels_whole() -> None:
    label = "Compressed, random topology, final weights of (Full dense, l1 0, weight decay 0.0001), ERK, l1 0"
    picture = paint("long", "", "", lambda axes: axes.plot([0, 1], [0, 1], label=label) and ())
    shown = re.findall(r">([^<>]+)</text>", picture.svg)
    assert label in " ".join(shown)


def test_densities_are_those_in_the_end_of_all_sparse_methods(
    examples: Experiment, pictures: dict[str, Picture]
) -> None:
    densities = {group.label: final_densities(group) for group in examples.at(0.99) if group.sparsity}
    assert densities["Static"] == pytest.approx({"fc1": 1, "fc2": 1, "fc3": 1})
    assert densities["DSR"]["fc1"] == pytest.approx(0.5)
    assert densities["DSR"]["fc3"] > 50
    assert pictures["lenet-300-100-mnist-densities-0.99"].alt.endswith("of Static, SET, DSR.")


def test_layers_that_one_method_leaves_dense_are_no_hindrance(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=2)
    path = write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2)
    summary = RunFolder(path).read_json("summary.json")
    RunFolder(path).write_json("summary.json", summary | {"layers": summary["layers"][:2]})
    assert [text for text in spots(densities_in(tmp_path)) if "SET" in text] == ["SET, fc1: 10 %", "SET, fc2: 10 %"]


def test_names_of_layers_that_would_run_into_one_another_are_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "few", 97.0, method="SET", sparsity=0.9, epochs=2)
    assert ">fc1</text>" in densities_in(tmp_path / "few").svg
    write_run(tmp_path / "long", 50.0, model="wrn_10_1", data="synthetic_colour", method="SET", sparsity=0.9, epochs=2)
    picture = densities_in(tmp_path / "long")
    assert ">layer, counted from the input</text>" in picture.svg
    assert "SET, groups.1.0.conv1: 10 %" in spots(picture)


def test_densities_that_differ_by_rounding_look_alike(tmp_path: Path) -> None:
    path = write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2)
    summary = RunFolder(path).read_json("summary.json")
    first, *others = summary["layers"]
    RunFolder(path).write_json(
        "summary.json", summary | {"layers": [{**first, "active": first["active"] + 2}, *others]}
    )
    heights = [place[1] for place in spots(densities_in(tmp_path)).values()]
    assert max(heights) - min(heights) < 1  # of 245 points


def test_only_where_lengths_differ_it_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="SET", sparsity=0.9, epochs=2)
    assert "longer" not in learning_plate(experiment_in(tmp_path)).caption
    write_run(tmp_path, 97.0, method="Static", sparsity=0.9, epochs=2)  # twice as long, as in the paper
    assert "Some train longer than others." in learning_plate(experiment_in(tmp_path)).caption


def test_times_of_different_machines_are_not_compared(tmp_path: Path) -> None:
    for host, methods in (("old", ("DSR", "SET")), ("new", ("DSR", "Static", "RigL"))):
        for method in methods:
            seed = 0 if host == "old" else 1
            with_provenance(write_run(tmp_path, 97.0, method=method, sparsity=0.9, epochs=2, seed=seed), host=host)
    experiment = experiment_in(tmp_path)
    assert {label: len(runs) for label, runs in on_one_machine(experiment.groups).items()} == {
        "Static": 1,
        "DSR": 1,
        "RigL": 1,
    }
    notes = [view.note for plate in plates(experiment) for view in plate.views if view.note]
    assert notes == [
        "Over time only runs on one machine are shown (new), as times on different ones do not compare. Not run "
        "there: SET."
    ]


def test_what_starts_from_another_run_has_not_all_of_its_time(tmp_path: Path) -> None:
    write_run(tmp_path, 97.0, method="Gradual", sparsity=0.9, epochs=2)
    notes = [view.note for plate in plates(experiment_in(tmp_path)) for view in plate.views if view.note]
    assert notes == ["Without the time of the run that they start from: Compressed."]


# How colours look without one kind of cone: matrices for linear RGB from Machado, Oliveira & Fernandes, 2009.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])


def in_lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """A colour in CIELAB, where distances are differences that people see; 2 is hardly any, 20 is clear."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(vision @ linear, 0, 1) / np.array([0.9505, 1.0, 1.0888])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_methods_are_told_apart_with_any_kind_of_colour_vision(vision: str) -> None:
    for tone in ("light", "dark"):
        seen = [in_lab(getattr(colour, tone), VISION[vision]) for colour in palette.METHODS.values()]
        assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 20


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_colour_that_is_readable_on_both_grounds() -> None:
    assert set(palette.METHODS) == set(FAMILIES)
    assert len({colour.light for colour in palette.ALL}) == len(palette.ALL)
    for colour in (*palette.METHODS.values(), palette.OTHER):
        assert contrast(colour.light, palette.GROUND.light) >= 3
        assert contrast(colour.dark, palette.GROUND.dark) >= 3
    for text in (palette.INK, palette.QUIET):
        assert contrast(text.light, palette.GROUND.light) >= 4.5
        assert contrast(text.dark, palette.GROUND.dark) >= 4.5
