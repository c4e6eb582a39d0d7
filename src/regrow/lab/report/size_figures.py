"""What runs are judged by against the size of their networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from regrow.lab.report.axes import is_wide, log_axis, score_axis
from regrow.lab.report.canvas import Picture, Plate, Spot, View, draw_runs, paint
from regrow.lab.report.formats import several, short_count
from regrow.lab.report.palette import GROUND, INK, Look, looks
from regrow.lab.report.results import Experiment, Group

_DENSE_IN_FLOPS = "HashedNet"  # which would leave the others a corner of the figure
_CLOSE = 2.0  # times the error of the best
_SIDE_BY_SIDE = 0.05  # of the axis, for the runs of all methods of one size


@dataclass(frozen=True)
class Size:
    """A quantity that groups have, and its words."""

    key: str
    words: str

    def of(self, group: Group) -> float:
        return group.median_of(self.key)


PARAMETERS = Size("parameters", "parameters")
FLOPS = Size("flops", "FLOPs of a forward pass")


def size_plates(experiment: Experiment) -> list[Plate]:
    """All of it, and where some are far below the others those at the top once more, close up."""
    if not _tells_more_than_a_table(experiment):
        return []
    seen = _seen(experiment)
    title = f"{experiment.score.words.capitalize()} against size"
    made = [Plate(title, _caption(experiment, seen), [View(_pictures(experiment, seen))])]
    close = _close(experiment, seen)
    if close:
        caption = f"The same from {min(close):.4g} % up, where lines above lie close together."
        made.append(Plate(f"{title}, close up", caption, [View(_pictures(experiment, close, "-close"))]))
    return made


def _tells_more_than_a_table(experiment: Experiment) -> bool:
    sparse = [group for group in experiment.groups if group.sparsity is not None]
    sizes = {(PARAMETERS.of(group), FLOPS.of(group)) for group in sparse}
    return len(sizes) > 1 or any(len(group.results) > 1 for group in sparse)


def _close(experiment: Experiment, seen: Sequence[float]) -> list[float]:
    """The scores not far below the best, where these are worth a second look."""
    if experiment.score.per_loss is not None or not is_wide(seen):
        return []
    low = 100 - _CLOSE * (100 - max(seen) + 0.25)
    num_medians = sum(group.median >= low for group in experiment.groups if group.sparsity is not None)
    return [value for value in seen if value >= low] if num_medians > 2 else []


def _seen(experiment: Experiment) -> list[float]:
    references = [group.reference.mean for group in experiment.groups if group.reference]
    return [*(value for group in experiment.groups for value in group.scores), *references]


def _caption(experiment: Experiment, seen: Sequence[float]) -> str:
    said = ["Lines join medians."]
    if any(len(group.results) > 1 for group in experiment.groups):
        said.append("Each pale dot is a run, those of different methods side by side.")
    if any(group.sparsity is None for group in experiment.groups):
        said.append("The horizontal line is the full dense network.")
    if any(group.reference for group in experiment.groups):
        shorter = any(group.reference and group.has_other_length for group in experiment.groups)
        length = "; they were trained for another number of epochs than the runs here" if shorter else ""
        said.append(f"Hollow markers are references{length}.")
    if experiment.score.per_loss is None and is_wide(seen):
        said.append("The axis is logarithmic in the error, so that both ends can be read.")
    if any(group.family == _DENSE_IN_FLOPS for group in experiment.groups):
        said.append(f"{_DENSE_IN_FLOPS} computes as much as the dense network and is not shown against FLOPs.")
    return " ".join(said)


def _pictures(experiment: Experiment, seen: Sequence[float], part: str = "") -> list[Picture]:
    return [_picture(experiment, size, seen, part) for size in (PARAMETERS, FLOPS)]


def _picture(experiment: Experiment, size: Size, seen: Sequence[float], part: str) -> Picture:
    score, shown = experiment.score, _shown(experiment, size)
    best = experiment.best_first([group for group in shown if group.sparsity is not None])[0]
    extreme = "lowest" if score.is_lower_better else "highest"
    num_methods = several(len({group.label for group in shown}), "method")
    alt = (
        f"Test {score.words} against {size.words} for {num_methods}; the {extreme} median of a sparse or thin network "
        f"is {score.text(best.median)}, of {best.label} with {short_count(size.of(best))} {size.words}."
    )

    def draw(axes: Axes) -> list[Spot]:
        return _draw(axes, experiment, size, seen)

    name = f"{experiment.slug}-{score.key.replace('_', '-')}-{size.key}{part}"
    return paint(name, f"{score.words.capitalize()} against {size.words}", alt, draw)


def _shown(experiment: Experiment, size: Size) -> list[Group]:
    others = [group for group in experiment.groups if group.family != _DENSE_IN_FLOPS]
    return others if size is FLOPS and any(group.sparsity is not None for group in others) else experiment.groups


def _draw(axes: Axes, experiment: Experiment, size: Size, seen: Sequence[float]) -> list[Spot]:
    shown = _shown(experiment, size)
    ends = _room([size.of(group) for group in shown if group.sparsity is not None])
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    spots: list[Spot] = []
    its_looks = looks(experiment)
    for i, (label, its_look) in enumerate(its_looks.items()):
        groups = [group for group in shown if group.label == label]
        if groups and groups[0].sparsity is None:
            spots += _draw_level(axes, groups[0], its_look)
        elif groups:
            shift = (ends[1] / ends[0]) ** (_SIDE_BY_SIDE * ((i + 0.5) / len(its_looks) - 0.5))
            for group in groups:
                draw_runs(axes, shift * size.of(group), group.scores, its_look)
            spots += _draw_sizes(axes, groups, its_look, size)
    if any(group.reference for group in shown):
        axes.plot([], [], linestyle="", marker="o", color=INK.light, markerfacecolor=GROUND.light, label="reference")
    score_axis(axes, experiment.score, seen)
    log_axis(axes.xaxis)
    axes.set_xlabel(size.words)
    return spots


def _room(sizes: Sequence[float]) -> tuple[float, float]:
    """Where a logarithmic axis begins and ends."""
    low, high = max(min(sizes), 1.0), max(*sizes, 1.0)
    margin = max((high / low) ** 0.06, 1.1) if high > low else 2.0
    return low / margin, high * margin


def _draw_level(axes: Axes, group: Group, its_look: Look) -> list[Spot]:
    """A dense network has one size; its accuracy is a line to hold the others against."""
    colour = its_look.colour.light
    axes.axhline(group.median, color=colour, linestyle=its_look.dashes, label=group.label, linewidth=1.4)
    axes.axhspan(min(group.scores), max(group.scores), color=colour, alpha=0.12, linewidth=0)
    low, high = axes.get_xlim()
    if group.reference:
        _draw_reference(axes, 0.985, group.reference.mean, its_look, transform=axes.get_yaxis_transform())
    return [Spot(low * (high / low) ** share, group.median, _said(group)) for share in (0.02, 0.25, 0.5, 0.75, 0.98)]


def _draw_sizes(axes: Axes, groups: Sequence[Group], its_look: Look, size: Size) -> list[Spot]:
    ordered = sorted(groups, key=size.of)
    sizes, medians = [size.of(group) for group in ordered], [group.median for group in ordered]
    line = axes.plot(sizes, medians, label=ordered[0].label)[0]
    its_look.on(line)
    spots = [Spot(size.of(group), group.median, _said(group)) for group in ordered]
    for group in ordered:
        if group.reference:
            _draw_reference(axes, size.of(group), group.reference.mean, its_look)
            reference = group.score.spread(group.reference.mean, group.reference.sd)
            spots.append(Spot(size.of(group), group.reference.mean, f"{_named(group)}: reference {reference}"))
    return spots


def _draw_reference(axes: Axes, x: float, y: float, its_look: Look, **options: Any) -> None:
    mark = axes.plot([x], [y], linestyle="", marker=its_look.marker, markersize=7, zorder=5, **options)[0]
    mark.set(color=its_look.colour.light, markerfacecolor=GROUND.light)


def _named(group: Group) -> str:
    return group.label if group.sparsity is None else f"{group.label}, {group.sparsity:g}"


def _said(group: Group) -> str:
    """All that a figure of medians shows of a group."""
    number = group.score.number
    runs = f", median of {' '.join(map(number, sorted(group.scores)))}" if len(group.scores) > 1 else ""
    return f"{_named(group)}: {group.score.text(group.median)}{runs}"
