"""What is drawn of an experiment: accuracy against size, learning curves, and the figures of rewirings."""

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

from matplotlib.axes import Axes

from regrow.lab.report.canvas import Picture, Plate, log_axis, paint, score_axis, whole_numbers
from regrow.lab.report.formats import several, short_count
from regrow.lab.report.palette import GROUND, INK, Look, looks
from regrow.lab.report.results import Experiment, Group
from regrow.lab.report.rewiring_figures import layers_plate, rewirings_plate
from regrow.lab.report.stopping_figures import stopping_plate, without_variants
from regrow.lab.run.folder import Row


def plates(experiment: Experiment) -> list[Plate]:
    """All figures of an experiment; those that have nothing to show are left out."""
    main = without_variants(experiment)
    made = [
        accuracy_plate(main),
        stopping_plate(experiment),
        layers_plate(main),
        rewirings_plate(main),
        curves_plate(main),
    ]
    return [plate for plate in made if plate.pictures]


def accuracy_plate(experiment: Experiment) -> Plate:
    """What runs are judged by against parameters and against operations."""
    title = f"{experiment.score.words.capitalize()} against size"
    caption = (
        "Lines join medians; bands reach from the lowest to the highest seed. The horizontal line is the full dense "
        "network."
    )
    if any(group.reference for group in experiment.groups):
        caption += " Hollow markers are references"
        shorter = any(group.reference and group.has_other_length for group in experiment.groups)
        caption += "; they were trained for another number of epochs than the runs here." if shorter else "."
    if not experiment.sparsities:
        return Plate(title, caption, [])
    pictures = [
        _accuracy_picture(experiment, "parameters", "parameters"),
        _accuracy_picture(experiment, "flops", "FLOPs of a forward pass"),
    ]
    return Plate(title, caption, pictures)


def _accuracy_picture(experiment: Experiment, quantity: str, words: str) -> Picture:
    score, best = experiment.score, experiment.best_first([g for g in experiment.groups if g.sparsity is not None])[0]
    size, extreme = short_count(best.median_of(quantity)), "lowest" if score.is_lower_better else "highest"
    alt = (
        f"Test {score.words} against {words} for {several(len(looks(experiment)), 'method')}; the {extreme} median of "
        f"a sparse or thin network is {score.text(best.median)}, of {best.label} with {size} {words}."
    )

    def draw(axes: Axes) -> None:
        _draw_accuracy(axes, experiment, quantity, words)

    name = f"{experiment.slug}-{score.key.replace('_', '-')}-{quantity}"
    return paint(name, f"{score.words.capitalize()} against {words}", alt, draw)


def _draw_accuracy(axes: Axes, experiment: Experiment, quantity: str, words: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*_room([group.median_of(quantity) for group in experiment.groups if group.sparsity is not None]))
    seen = [value for group in experiment.groups for value in group.scores]
    seen += [group.reference.mean for group in experiment.groups if group.reference]
    for label, its_look in looks(experiment).items():
        groups = [group for group in experiment.groups if group.label == label]
        if groups[0].sparsity is None:
            _draw_level(axes, groups[0], its_look)
        else:
            _draw_sizes(axes, groups, its_look, quantity)
    if any(group.reference for group in experiment.groups):
        axes.plot([], [], linestyle="", marker="o", color=INK.light, markerfacecolor=GROUND.light, label="reference")
    score_axis(axes, experiment.score, seen)
    log_axis(axes.xaxis)
    axes.set_xlabel(words)


def _room(sizes: Sequence[float]) -> tuple[float, float]:
    """Where a logarithmic axis begins and ends."""
    low, high = max(min(sizes), 1.0), max(*sizes, 1.0)
    margin = max((high / low) ** 0.06, 1.1)
    return low / margin, high * margin


def _draw_level(axes: Axes, group: Group, its_look: Look) -> None:
    """A dense network has one size; its accuracy is a line to hold the others against."""
    colour = its_look.colour.light
    axes.axhline(group.median, color=colour, linestyle=its_look.dashes, label=group.label, linewidth=1.4)
    axes.axhspan(min(group.scores), max(group.scores), color=colour, alpha=0.12, linewidth=0)
    if group.reference:
        at_the_edge = axes.get_yaxis_transform()
        _draw_reference(axes, 0.985, group.reference.mean, its_look, transform=at_the_edge)


def _draw_sizes(axes: Axes, groups: Sequence[Group], its_look: Look, quantity: str) -> None:
    ordered = sorted(groups, key=lambda group: group.median_of(quantity))
    sizes = [group.median_of(quantity) for group in ordered]
    lows, highs = [min(group.scores) for group in ordered], [max(group.scores) for group in ordered]
    colour = its_look.colour.light
    axes.fill_between(sizes, lows, highs, color=colour, alpha=0.15, linewidth=0)
    if len(ordered) == 1:
        axes.vlines(sizes, lows, highs, color=colour, alpha=0.4, linewidth=3)
    axes.plot(
        sizes,
        [group.median for group in ordered],
        color=colour,
        marker=its_look.marker,
        linestyle=its_look.dashes,
        label=ordered[0].label,
    )
    for size, group in zip(sizes, ordered, strict=True):
        if group.reference:
            _draw_reference(axes, size, group.reference.mean, its_look)


def _draw_reference(axes: Axes, x: float, y: float, its_look: Look, **options: object) -> None:
    axes.plot(
        [x],
        [y],
        linestyle="",
        marker=its_look.marker,
        color=its_look.colour.light,
        markerfacecolor=GROUND.light,
        markersize=7,
        zorder=5,
        **options,  # type: ignore[arg-type]
    )


def curves_plate(experiment: Experiment) -> Plate:
    """Learning curves of all methods at one sparsity."""
    sparsity = experiment.chosen_sparsity
    groups = [group for group in experiment.at(sparsity) if any(result.metrics for result in group.results)]
    at = "" if sparsity is None else f" at sparsity {sparsity:g}"
    caption = f"Medians over seeds{at}. Some methods train longer than others, as in the paper."
    if not groups:
        return Plate("Learning curves", caption, [])
    pictures = [
        _curves_picture(experiment, groups, f"Test {experiment.score.words}", at, experiment.score.of),
        _curves_picture(experiment, groups, "Training loss", at, None),
    ]
    return Plate("Learning curves", caption, pictures)


Value = Callable[[Row], float | None]


def _curves_picture(
    experiment: Experiment, groups: Sequence[Group], what: str, at: str, score: Value | None
) -> Picture:
    """What runs are judged by over time, or if that is None the loss in training."""
    time = experiment.time
    alt = f"{what} by {time} of {', '.join(group.label for group in groups)}."

    def draw(axes: Axes) -> None:
        seen: list[float] = []
        for group in groups:
            its_look = looks(experiment)[group.label]
            curve = learning_curve(group, score or _train_loss, time)
            line = axes.plot(list(curve), list(curve.values()), label=group.label, linewidth=1.5, markersize=4.5)[0]
            line.set(color=its_look.colour.light, linestyle=its_look.dashes, marker=its_look.marker)
            line.set_markevery(max(1, len(curve) // 6))
            seen += curve.values()
        axes.set_xlabel(time)
        whole_numbers(axes.xaxis)
        if score and seen:
            score_axis(axes, experiment.score, seen)
        elif seen:
            axes.set_yscale("log")
            log_axis(axes.yaxis)
            axes.set_ylabel("training loss")

    key = f"test-{experiment.score.key.replace('_', '-')}" if score else "train-loss"
    return paint(f"{experiment.slug}-{key}", f"{what}{at}", alt, draw)


def _train_loss(row: Row) -> float | None:
    return row.get("train_loss")


def learning_curve(group: Group, of: Value, time: str) -> dict[float, float]:
    """By epoch or step, the median over seeds of what is a number."""
    values: dict[float, list[float]] = {}
    for result in group.results:
        for row in result.metrics:
            value = of(row)
            if value is not None and isfinite(value):
                values.setdefault(row[time], []).append(value)
    return {when: median(some) for when, some in sorted(values.items())}
