"""How long rewiring matters: what runs are judged by against the epoch at which it stopped."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from regrow.lab.report.canvas import Picture, Plate, paint, score_axis
from regrow.lab.report.labels import departures
from regrow.lab.report.palette import look
from regrow.lab.report.results import Experiment, Group

_KEY = "method.until"


@dataclass(frozen=True)
class Series:
    """Groups that differ in nothing but when they stopped, the earliest first."""

    label: str
    groups: tuple[Group, ...]

    @property
    def has_the_paper(self) -> bool:
        return any(_KEY not in departures(group.config) for group in self.groups)


def until(group: Group) -> float:
    """The epoch after which there was no rewiring, as schedules are written."""
    told = group.config.method.get("until")
    return float(group.config.written_for if told is None else told)


def series_of(experiment: Experiment) -> list[Series]:
    """All that stopped at more than one time."""
    alike: dict[str, list[Group]] = {}
    for group in experiment.groups:
        if group.sparsity is not None:
            alike.setdefault(_label(group), []).append(group)
    return [Series(label, tuple(sorted(groups, key=until))) for label, groups in alike.items() if len(groups) > 1]


def _label(group: Group) -> str:
    """What it is called, whenever it stopped."""
    parts = [part for part in group.label.split(", ") if part != departures(group.config).get(_KEY)]
    return ", ".join([*parts, f"sparsity {group.sparsity:g}"])


def without_variants(experiment: Experiment) -> Experiment:
    """Without what stopped early, where it has a figure of its own beside what stopped as in the paper."""
    shown = [group for series in series_of(experiment) if series.has_the_paper for group in series.groups]
    early = [group for group in shown if _KEY in departures(group.config)]
    return replace(experiment, groups=[group for group in experiment.groups if group not in early])


def stopping_plate(experiment: Experiment) -> Plate:
    """One picture of all series."""
    found = series_of(experiment)
    caption = (
        "Every run trains to its end, whenever it stopped rewiring. Lines join medians; bars reach from the lowest to "
        "the highest seed. Horizontal lines are compressed networks of the same sparsity."
    )
    return Plate("Rewiring stopped early", caption, [_picture(experiment, found)] if found else [])


def _picture(experiment: Experiment, found: Sequence[Series]) -> Picture:
    score, time = experiment.score, experiment.time
    ends = [
        f"{one.label}: {score.text(one.groups[0].median)} until {time} {until(one.groups[0]):g}, "
        f"{score.text(one.groups[-1].median)} until {until(one.groups[-1]):g}"
        for one in found
    ]
    alt = f"Test {score.words} against the {time} at which rewiring stopped. {'; '.join(ends)}."

    def draw(axes: Axes) -> None:
        seen = []
        for variant, series in enumerate(found):
            its_look = look(series.groups[0].family, variant)
            colour = its_look.colour.light
            epochs = [until(group) for group in series.groups]
            lows, highs = zip(*((min(g.scores), max(g.scores)) for g in series.groups), strict=True)
            axes.vlines(epochs, lows, highs, color=colour, alpha=0.4, linewidth=3)
            axes.plot(
                epochs,
                [group.median for group in series.groups],
                color=colour,
                marker=its_look.marker,
                linestyle=its_look.dashes,
                label=series.label,
            )
            seen += [*lows, *highs]
            for level in _compressed(experiment, series):
                colour = look(level.family).colour.light
                axes.axhline(level.median, color=colour, linestyle=its_look.dashes, linewidth=1.2, label=_label(level))
                seen.append(level.median)
        axes.set_xlabel(f"{time} at which rewiring stopped")
        score_axis(axes, experiment.score, seen)

    return paint(f"{experiment.slug}-stopped", f"{score.words.capitalize()} against when rewiring stopped", alt, draw)


def _compressed(experiment: Experiment, series: Series) -> list[Group]:
    return [g for g in experiment.groups if g.name == "Compressed" and g.sparsity == series.groups[0].sparsity]
