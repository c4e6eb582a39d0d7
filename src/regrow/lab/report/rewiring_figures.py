"""What rewiring did: thresholds, and how many weights went and came."""

from collections.abc import Mapping
from functools import partial

from matplotlib.axes import Axes

from regrow.lab.report.axes import counts, log_axis
from regrow.lab.report.canvas import Plate, Spot, View, paint, spots_along
from regrow.lab.report.layer_figures import representatives
from regrow.lab.report.palette import Look, looks
from regrow.lab.report.result import Result
from regrow.lab.report.results import Experiment


def rewirings_plate(experiment: Experiment) -> Plate:
    """The threshold, and how many weights went and came, rewiring by rewiring."""
    runs = representatives(experiment, lambda result: len(result.history) > 1)
    with_threshold = {label: run for label, run in runs.items() if any("threshold" in row for row in run.history)}
    pictures = []
    for key, title, shown, draw in (
        ("threshold", "Threshold of pruning", with_threshold, _draw_thresholds),
        ("rewired", "Pruned and grown per rewiring", runs, _draw_rewired),
    ):
        if shown:
            alt = f"{title}, for {', '.join(_names(shown).values())}."
            pictures.append(paint(f"{experiment.slug}-{key}", title, alt, partial(draw, experiment, shown)))
    caption = (
        "One run per method, the median one. Dots: pruned; pale discs behind them: grown, which is as many where a "
        "method keeps its budget. Methods that rewire after every step keep only totals and are not shown."
    )
    return Plate("Rewirings", caption, [View(pictures)])


def _names(runs: Mapping[str, Result]) -> dict[str, str]:
    """What the runs of some labels are called, each with its sparsity."""
    return {label: f"{label}, sparsity {run.config.sparsity:g}" for label, run in runs.items()}


def _draw_thresholds(experiment: Experiment, runs: Mapping[str, Result], axes: Axes) -> list[Spot]:
    axes.set_yscale("log")
    spots: list[Spot] = []
    for label, run in runs.items():
        rows = [row for row in run.history if "threshold" in row]
        steps, thresholds = [row["step"] for row in rows], [row["threshold"] for row in rows]
        spots += _draw_series(axes, (steps, thresholds), looks(experiment)[label], _names(runs)[label])
    log_axis(axes.yaxis, lambda value: f"{value:.3g}")
    counts(axes.xaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("threshold")
    return spots


def _draw_rewired(experiment: Experiment, runs: Mapping[str, Result], axes: Axes) -> list[Spot]:
    axes.set_yscale("log")
    spots: list[Spot] = []
    for label, run in runs.items():
        its_look, steps = looks(experiment)[label], [row["step"] for row in run.history]
        discs = axes.plot(steps, _totals(run, "grown:"), linestyle="", marker="o", markersize=6, alpha=0.25)[0]
        discs.set(color=its_look.colour.light, markeredgewidth=0)
        spots += _draw_series(axes, (steps, _totals(run, "pruned:")), its_look, _names(runs)[label])
    log_axis(axes.yaxis)
    counts(axes.xaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("units per rewiring")
    return spots


def _draw_series(axes: Axes, points: tuple[list[float], list[float]], its_look: Look, name: str) -> list[Spot]:
    """Dots on a pale line: what goes up and down all the time would be a block as a plain one."""
    colour, dot = its_look.colour.light, its_look.dot
    axes.plot(*points, color=colour, linewidth=0.7, alpha=0.35)
    dots = axes.plot(*points, color=colour, linestyle="", marker=dot, markersize=2.4 if dot == "o" else 4)[0]
    dots.set(markeredgewidth=0 if dot == "o" else 0.7)
    axes.plot([], [], color=colour, linestyle="", marker=dot, label=name)
    return spots_along(*points, lambda x, y: f"{name}, step {x:,.0f}: {y:,.4g}")


def _totals(run: Result, prefix: str) -> list[float]:
    """Over all layers; nothing is left out of a logarithmic axis rather than drawn at its end."""
    sums = [sum(value for key, value in row.items() if key.startswith(prefix)) for row in run.history]
    return [total if total > 0 else float("nan") for total in sums]
