"""What rewiring did: sparsities of layers as they emerge, thresholds, and how many weights went and came."""

import re
from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes

from regrow.lab.report.canvas import Picture, Plate, counts, log_axis, paint, whole_numbers
from regrow.lab.report.formats import slug
from regrow.lab.report.palette import layer_colour, looks
from regrow.lab.report.results import Experiment, Group, Result

_RESIDUAL_GROUP = re.compile(r"groups\.(\d+)\.")
_MANY_LAYERS = 9


def representatives(experiment: Experiment, fits: Callable[[Result], bool]) -> dict[str, Result]:
    """One run of each label that fits: the median one at the chosen sparsity, or at the label's highest."""
    found: dict[str, Group] = {}
    for group in experiment.groups:
        better = group.label not in found or group.sparsity == experiment.chosen_sparsity
        if better and fits(group.representative):
            found[group.label] = group
    return {label: group.representative for label, group in found.items()}


def moves_weights(result: Result) -> bool:
    """Whether layers gave weights to one another: their numbers changed while the total stayed."""
    names = [layer.name for layer in result.layers]
    rows = [[row.get(name, 0.0) for name in names] for row in result.layer_counts]
    if len(rows) < 2 or not names:
        return False
    totals = [sum(row) for row in rows]
    stays = max(totals) - min(totals) <= 0.02 * max(totals)
    return stays and any(abs(last - first) > 0.01 * first for first, last in zip(rows[0], rows[-1], strict=True))


def layers_plate(experiment: Experiment) -> Plate:
    """How the sparsities of layers emerged, for each method that moves weights between them."""
    pictures: list[Picture] = []
    for label, result in representatives(experiment, moves_weights).items():
        pictures.append(_layers_picture(experiment, label, result, result.sparsities(), "layer"))
        by_group = residual_groups(result)
        if by_group:
            pictures.append(_layers_picture(experiment, label, result, by_group, "residual group"))
    caption = (
        "All layers share one budget; how much of it each gets is decided while training. One run per method, the "
        "median one."
    )
    return Plate("Layer sparsities emerging", caption, pictures)


def residual_groups(result: Result) -> dict[str, list[float]]:
    """The sparsity of every residual group over time; empty for networks that have none."""
    members: dict[str, list[tuple[str, int]]] = {}
    for layer in result.layers:
        found = _RESIDUAL_GROUP.match(layer.name)
        name = f"group {int(found[1]) + 1}" if found else layer.name.removesuffix(".weight")
        members.setdefault(name, []).append((layer.name, layer.positions))
    if not any(name.startswith("group ") for name in members):
        return {}
    return {
        name: [
            1 - sum(row.get(layer, 0.0) for layer, _ in some) / sum(size for _, size in some)
            for row in result.layer_counts
        ]
        for name, some in members.items()
    }


def _layers_picture(
    experiment: Experiment, label: str, result: Result, sparsities: dict[str, list[float]], what: str
) -> Picture:
    ends = {name: values[-1] for name, values in sparsities.items() if values}
    sparsest, densest = max(ends, key=lambda name: ends[name]), min(ends, key=lambda name: ends[name])
    named = f"{label} at sparsity {result.config.sparsity:g}"
    alt = (
        f"Sparsity of each {what} over the {experiment.time}s of {named}: in the end {sparsest} is sparsest "
        f"({ends[sparsest]:.3f}), {densest} densest ({ends[densest]:.3f})."
    )
    times = [row["epoch"] for row in result.layer_counts] if experiment.time == "epoch" else result.steps

    def draw(axes: Axes) -> None:
        every = 1 if len(sparsities) <= _MANY_LAYERS else (len(sparsities) - 1) / 5
        marked = {round(i * every) for i in range(len(sparsities))}
        for i, (name, values) in enumerate(sparsities.items()):
            shown = name.removesuffix(".weight") if i in marked else None
            width = 1.8 if len(sparsities) <= _MANY_LAYERS else 1.1
            axes.plot(times, values, color=layer_colour(i, len(sparsities)).light, label=shown, linewidth=width)
        axes.set_xlabel(experiment.time)
        axes.set_ylabel("sparsity")
        axes.margins(x=0.02)
        whole_numbers(axes.xaxis)

    title = f"{label}, sparsity {result.config.sparsity:g}: each {what}"
    return paint(f"{experiment.slug}-layers-{slug(label)}-{slug(what)}", title, alt, draw)


def rewirings_plate(experiment: Experiment) -> Plate:
    """The threshold, and how many weights went and came, rewiring by rewiring."""
    runs = representatives(experiment, lambda result: len(result.history) > 1)
    with_threshold = {label: run for label, run in runs.items() if any("threshold" in row for row in run.history)}
    pictures = []
    if with_threshold:
        alt = f"Pruning threshold after each rewiring, for {', '.join(with_threshold)}."
        draw = partial(_draw_thresholds, experiment, with_threshold)
        pictures.append(paint(f"{experiment.slug}-threshold", "Threshold of pruning", alt, draw))
    if runs:
        alt = f"Units pruned and grown in each rewiring, for {', '.join(runs)}."
        draw = partial(_draw_rewired, experiment, runs)
        pictures.append(paint(f"{experiment.slug}-rewired", "Pruned and grown per rewiring", alt, draw))
    caption = (
        "Dots: pruned. Pale discs: grown; they coincide where a method keeps its budget. One run per method, the "
        "median one; methods that rewire after every step keep only totals and are not shown."
    )
    return Plate("Rewirings", caption, pictures)


def _draw_thresholds(experiment: Experiment, runs: dict[str, Result], axes: Axes) -> None:
    axes.set_yscale("log")
    for label, run in runs.items():
        rows = [row for row in run.history if "threshold" in row]
        steps, thresholds = [row["step"] for row in rows], [row["threshold"] for row in rows]
        _draw_series(axes, steps, thresholds, looks(experiment)[label].colour.light, label)
    log_axis(axes.yaxis, lambda value: f"{value:.3g}")
    counts(axes.xaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("threshold")


def _draw_rewired(experiment: Experiment, runs: dict[str, Result], axes: Axes) -> None:
    axes.set_yscale("log")
    for label, run in runs.items():
        colour = looks(experiment)[label].colour.light
        steps = [row["step"] for row in run.history]
        axes.plot(
            steps, _totals(run, "grown:"), color=colour, linestyle="", marker="o", markersize=6, alpha=0.25, mew=0
        )
        _draw_series(axes, steps, _totals(run, "pruned:"), colour, label)
    log_axis(axes.yaxis)
    counts(axes.xaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("units per rewiring")


def _draw_series(axes: Axes, steps: list[float], values: list[float], colour: str, label: str) -> None:
    """Dots on a pale line: what goes up and down all the time would be a block as a plain one."""
    axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
    axes.plot(steps, values, color=colour, linestyle="", marker="o", markersize=2.4, mew=0)
    axes.plot([], [], color=colour, linestyle="", marker="o", label=label)


def _totals(run: Result, prefix: str) -> list[float]:
    """Over all layers; nothing is left out of a logarithmic axis rather than drawn at its end."""
    sums = [sum(value for key, value in row.items() if key.startswith(prefix)) for row in run.history]
    return [total if total > 0 else float("nan") for total in sums]
