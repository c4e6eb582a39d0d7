"""How networks of one sparsity learned: over epochs, over training time, and where their weights are in the end."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import median

from matplotlib.axes import Axes

from regrow.lab.report.axes import log_axis, score_axis, time_axis, whole_numbers
from regrow.lab.report.canvas import Picture, Plate, Spot, View, paint, spots_along
from regrow.lab.report.formats import duration
from regrow.lab.report.layer_figures import densities_picture
from regrow.lab.report.machines import note_on_times, on_one_machine
from regrow.lab.report.palette import looks
from regrow.lab.report.result import Result
from regrow.lab.report.results import Experiment
from regrow.lab.run.folder import Row

Curve = dict[float, float]
Value = Callable[[Row], float | None]


def learning_plate(experiment: Experiment) -> Plate:
    """A view of each sparsity, the sparsest first; dense networks are in all of them."""
    title = "Learning curves and final layers" if experiment.sparsities else "Learning curves"
    lengths = {group.config.length for group in experiment.groups}
    longer = " Some train longer than others." if len(lengths) > 1 else ""
    caption = (
        f"Medians over seeds.{longer} Time is that of training and tests as the runs took it, maybe beside other runs."
    )
    sparsities: list[float | None] = [*reversed(experiment.sparsities)] or [None]
    views = {sparsity: _view(experiment, sparsity) for sparsity in sparsities}
    shown = [sparsity for sparsity in sparsities if views[sparsity].pictures]
    chosen = shown.index(experiment.chosen_sparsity) if experiment.chosen_sparsity in shown else 0
    return Plate(title, caption, [views[sparsity] for sparsity in shown], chosen)


def _view(experiment: Experiment, sparsity: float | None) -> View:
    groups = [group for group in experiment.at(sparsity) if any(result.metrics for result in group.results)]
    scores = {group.label: learning_curve(group.results, experiment.score.of, experiment.time) for group in groups}
    seen = [value for curve in scores.values() for value in curve.values()]
    losses = {group.label: learning_curve(group.results, _train_loss, experiment.time) for group in groups}
    alike = on_one_machine(groups)
    pictures = []
    if seen:
        pictures.append(_scores(experiment, scores, sparsity, seen))
    if seen and alike:
        pictures.append(_scores_over_time(experiment, alike, sparsity, seen))
    if any(losses.values()):
        pictures.append(_losses(experiment, losses, sparsity))
    name = "" if sparsity is None else f"{sparsity:g}"
    return View(pictures + densities_picture(experiment, sparsity), name, note_on_times(groups, alike))


def _train_loss(row: Row) -> float | None:
    return row.get("train_loss")


def learning_curve(results: Sequence[Result], of: Value, time: str) -> Curve:
    """By epoch or step, the median over seeds of what is a number."""
    values: dict[float, list[float]] = {}
    for result in results:
        for row in result.metrics:
            value = of(row)
            if value is not None and isfinite(value):
                values.setdefault(row[time], []).append(value)
    return {when: median(some) for when, some in sorted(values.items())}


def _scores(
    experiment: Experiment, curves: Mapping[str, Curve], sparsity: float | None, seen: Sequence[float]
) -> Picture:
    score, time = experiment.score, experiment.time

    def draw(axes: Axes) -> list[Spot]:
        spots = _draw_curves(axes, experiment, curves, lambda x, y: f"{time} {x:,.0f}: {score.text(y)}")
        axes.set_xlabel(time)
        whole_numbers(axes.xaxis)
        score_axis(axes, score, seen)
        return spots

    what = f"Test {score.words} by {time}"
    return _paint(experiment, f"test-{score.key.replace('_', '-')}", what, sparsity, curves, draw)


def _scores_over_time(
    experiment: Experiment, alike: Mapping[str, Sequence[Result]], sparsity: float | None, seen: Sequence[float]
) -> Picture:
    score = experiment.score
    curves = {label: _over_seconds(results, score.of, experiment.time) for label, results in alike.items()}

    def draw(axes: Axes) -> list[Spot]:
        axes.set_xscale("log")
        spots = _draw_curves(axes, experiment, curves, lambda x, y: f"after {duration(x)} {score.text(y)}")
        axes.set_xlabel("training time")
        time_axis(axes.xaxis)
        score_axis(axes, score, seen)
        return spots

    what = f"Test {score.words} by training time"
    return _paint(experiment, "time", what, sparsity, curves, draw)


def _over_seconds(results: Sequence[Result], of: Value, time: str) -> Curve:
    """The median score over the median time of each epoch."""
    seconds = learning_curve(results, lambda row: row.get("seconds"), time)
    scores = learning_curve(results, of, time)
    return {seconds[when]: score for when, score in scores.items() if seconds.get(when, 0.0) > 0}


def _losses(experiment: Experiment, curves: Mapping[str, Curve], sparsity: float | None) -> Picture:
    time = experiment.time

    def draw(axes: Axes) -> list[Spot]:
        spots = _draw_curves(axes, experiment, curves, lambda x, y: f"{time} {x:,.0f}: {y:.4g}")
        axes.set_xlabel(time)
        whole_numbers(axes.xaxis)
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        axes.set_ylabel("training loss")
        return spots

    return _paint(experiment, "train-loss", f"Training loss by {time}", sparsity, curves, draw)


def _paint(
    experiment: Experiment,
    key: str,
    what: str,
    sparsity: float | None,
    curves: Mapping[str, Curve],
    draw: Callable[[Axes], Sequence[Spot]],
) -> Picture:
    at, part = ("", "") if sparsity is None else (f", sparsity {sparsity:g}", f"-{sparsity:g}")
    return paint(f"{experiment.slug}-{key}{part}", f"{what}{at}", f"{what}{at}, of {', '.join(curves)}.", draw)


def _draw_curves(
    axes: Axes, experiment: Experiment, curves: Mapping[str, Curve], said: Callable[[float, float], str]
) -> list[Spot]:
    spots: list[Spot] = []
    for label, its_look in looks(experiment).items():
        xs, ys = list(curves.get(label, {})), list(curves.get(label, {}).values())
        if xs:
            line = axes.plot(xs, ys, label=label, linewidth=1.5, markersize=4.5)[0]
            its_look.on(line)
            line.set_markevery(max(1, len(xs) // 6))
            spots += spots_along(xs, ys, lambda x, y, label=label: f"{label}, {said(x, y)}")  # type: ignore[misc]
    return spots
