"""What the tables of docs/results.md say is what is kept under results/."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean

from regrow.lab.report.result import Result
from regrow.lab.report.results import Experiment, Group, collect
from regrow.lab.run.folder import find_runs

ROOT = Path(__file__).parents[3]
ROWS = {
    "full dense": "Full dense",
    "thin dense": "Thin dense",
    "thin dense, twice as long": "Thin dense",
    "static": "Static",
    "static, twice as long": "Static",
    "static, as long as the others": "Static, 1x",
    "compressed": "Compressed",
    "DeepR, per layer": "DeepR",
    "DSR on whole 3x3 kernels": "DSR, kernels, prune 2000",
}
TICKETS = {
    ("DSR's last", "fresh"): "DSR topology, fresh weights",
    ("DSR's last", "DSR's first"): "DSR topology, initial weights",
    ("random, as many in each layer as DSR has at the end", "fresh"): "random topology, DSR counts",
    ("random, the same share of every layer", "fresh"): "Static",
}


def table(heading: str) -> list[list[str]]:
    """The first table of the page after some words, row by row; the first two are its head."""
    text = (ROOT / "docs" / "results.md").read_text().partition(heading)[2]
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]


def is_shown(cell: str, *values: float | None) -> bool:
    """Whether a cell shows just these values, rounded to the digits it has.

    >>> is_shown("93.36 ± .08", 93.357, 0.0802), is_shown("93.36 ± .08", 93.357, None), is_shown("not run")
    (True, False, True)
    """
    shown = re.findall(r"[+-]?\d*\.\d+", cell)
    known = [value for value in values if value is not None]
    return len(shown) == len(known) and all(
        abs(float(number) - value) <= 0.5 / 10 ** len(number.partition(".")[2]) + 1e-9
        for number, value in zip(shown, known, strict=True)
    )


@cache
def experiments() -> dict[str, Experiment]:
    """By model."""
    names = ("lenet_mnist", "lenet_early_stop", "wrn_cifar10", "wrn_tickets", "wrn_early_stop")
    found = collect(*find_runs([ROOT / "results" / name for name in names]))
    return {str(experiment.config.model): experiment for experiment in found.experiments}


def kept(model: str) -> dict[tuple[str, float | None], Group]:
    """By name and sparsity."""
    return {(group.name, group.sparsity): group for group in experiments()[model].groups}


def named(row: str) -> str:
    """What the report calls a row of the page."""
    name = re.sub(r" \(.*\)", "", row)
    return ROWS.get(name, name)


def reference(group: Group | None) -> tuple[float | None, ...]:
    return (group.reference.mean, group.reference.sd) if group and group.reference else ()


def accuracy(group: Group | None) -> tuple[float | None, ...]:
    return (group.mean, group.sd) if group else ()


def test_lenet_300_100_on_mnist():
    head, _, *rows = table("## LeNet-300-100 on MNIST")
    name = ""
    for row, *cells in rows:
        name = name if row == "reference" else named(row)
        for sparsity, cell in zip(map(float, head[1:]), cells, strict=True):
            group = kept("lenet_300_100").get((name, sparsity))
            expected = reference(group) if row == "reference" else accuracy(group)
            assert is_shown(cell, *expected), (row, sparsity, cell, expected)


def test_rewiring_stopped_early_on_mnist():
    (_, *head), _, (_, *cells) = table("**Rewiring stopped early.**")
    for epoch, cell in zip(head, cells, strict=True):
        name = "DSR" if epoch.startswith("90") else f"DSR, rewiring until epoch {epoch} of 100"
        assert is_shown(cell, *accuracy(kept("lenet_300_100")[name, 0.99])), epoch


def test_wrn_28_2_on_cifar10():
    _, _, *rows = table("## WRN-28-2 on CIFAR-10")
    for row, *cells in rows:
        for sparsity, (cell, published, difference) in zip((0.9, 0.8), (cells[:3], cells[3:]), strict=True):
            group = kept("wrn_28_2").get((named(row), sparsity))
            if row == "full dense":
                group = kept("wrn_28_2")[named(row), None] if sparsity == 0.9 else None
            assert is_shown(cell, *accuracy(group)), (row, sparsity, cell)
            if published:
                assert group, (row, sparsity)
                assert group.reference, (row, sparsity)
                assert is_shown(published, *reference(group)), (row, sparsity, published)
                assert is_shown(difference, group.mean - group.reference.mean), (row, sparsity, difference)


def test_tickets():
    _, _, *rows = table("**Tickets.**")
    for connections, weights, last, lately in rows:
        group = kept("wrn_28_2")[TICKETS[connections, weights], 0.9]
        epochs = [row["test_accuracy"] for row in group.representative.metrics[-10:]]
        assert is_shown(last, *accuracy(group)), (connections, weights)
        assert is_shown(lately, mean(epochs)), (connections, weights)


def sparsity_of_group(result: Result, number: int) -> float:
    layers = [layer for layer in result.layers if layer.name.startswith(f"groups.{number}.")]
    return 1 - sum(layer.active for layer in layers) / sum(layer.positions for layer in layers)


def test_emerging_sparsity():
    _, _, (_, *cells) = table("**Emerging sparsity.**")
    for number, cell in enumerate(cells):
        shares = [sparsity_of_group(result, number) for result in kept("wrn_28_2")["DSR", 0.9].results]
        assert is_shown(cell, *shares), (number, cell, shares)


def test_stopping_early():
    (_, *head), _, *rows = table("**Stopping early.**")
    for epoch, last, lately, groups in zip(head, *(cells for _, *cells in rows), strict=True):
        name = "DSR" if epoch.startswith("190") else f"DSR, rewiring until epoch {epoch} of 200"
        group = kept("wrn_28_2").get((name, 0.9))
        if group is None:
            assert (last, lately, groups) == ("not run", "not run", ""), epoch
            continue
        first = next(result for result in group.results if result.config.seed == 0)
        assert is_shown(last, first.accuracy), epoch
        assert is_shown(lately, mean(row["test_accuracy"] for row in first.metrics[-10:])), epoch
        assert is_shown(groups, *(sparsity_of_group(first, number) for number in range(3))), epoch


def test_how_fast_the_lab_is():
    _, _, *rows = table("## How long it takes")
    measured = json.loads((ROOT / "results" / "bench" / "lab_wrn_28_2.json").read_text())["rows"]
    plain = measured[0]["step"]
    for (_, step, epoch, ratio), row in zip(rows, measured, strict=True):
        expected = (1000 * row["step"], row["epoch"], plain / row["step"])
        assert is_shown(f"{step} {epoch} {ratio}", *expected), row["how"]


def test_what_rewiring_costs():
    _, _, *rows = table("Epoch time relative to static sparse training")
    for column, model in ((0, "wrn_28_2"), (2, "resnet_50")):
        measured = json.loads((ROOT / "results" / "bench" / f"overhead_{model}.json").read_text())
        average = {row["method"]: row["average"] for row in measured["rows"]}
        for method, *cells in rows:
            assert is_shown(cells[column], average.get(method)), (model, method)


def test_what_a_rewiring_takes():
    _, _, *rows = table("## What it costs")
    lines = (ROOT / "results" / "bench" / "rewire.txt").read_text().splitlines()[2:]
    measured = {
        (model, method): [number for number in numbers if not number.endswith("x")]
        for model, _, method, *numbers in map(str.split, lines)
    }
    assert len(measured) == 2 * len(rows)
    for method, *cells in rows:
        for column, model in ((0, "wrn_28_2"), (3, "resnet_50")):
            assert [cell for cell in cells[column : column + 3] if cell] == measured[model, method], (model, method)


def test_weight_gradients():
    _, _, *rows = table("Weight gradients of convolutions with few channels")
    measured = [line.split() for line in (ROOT / "results" / "bench" / "weight_gradient.txt").read_text().splitlines()]
    pairs = {(cells[-5], cells[-4]) for cells in measured[2:]}
    shown = [pair for *_, theirs, ours in rows for pair in zip(theirs.split(", "), ours.split(", "), strict=True)]
    assert sorted(shown) == sorted(pairs)
