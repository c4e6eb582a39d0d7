"""How long rewiring matters: what runs are judged by against the epoch at which it stopped."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from regrow.lab.report.axes import score_axis
from regrow.lab.report.canvas import Picture, Plate, Spot, View, draw_runs, paint
from regrow.lab.report.palette import Look, look
from regrow.lab.report.results import Experiment, Group
from regrow.lab.report.stopped import Series, named, series_of, until


def stopping_plate(experiment: Experiment) -> Plate:
    """One picture of all series."""
    found = series_of(experiment)
    caption = (
        "Every run trains to its end, whenever it stopped rewiring. Lines join medians; each pale dot is a run. "
        "Horizontal lines are compressed networks of the same sparsity."
    )
    return Plate("Rewiring stopped early", caption, [View([_picture(experiment, found)])] if found else [])


def _picture(experiment: Experiment, found: Sequence[Series]) -> Picture:
    score, time = experiment.score, experiment.time
    ends = [
        f"{one.label}: {score.text(one.groups[0].median)} until {time} {until(one.groups[0]):g}, "
        f"{score.text(one.groups[-1].median)} until {until(one.groups[-1]):g}"
        for one in found
    ]
    alt = f"Test {score.words} against the {time} at which rewiring stopped. {'; '.join(ends)}."

    def draw(axes: Axes) -> list[Spot]:
        spots: list[Spot] = []
        for variant, series in enumerate(found):
            its_look = look(series.groups[0].family, variant)
            spots += _draw_series(axes, series, its_look)
            for level in _compressed(experiment, series):
                colour = look(level.family).colour.light
                axes.axhline(level.median, color=colour, linestyle=its_look.dashes, linewidth=1.2, label=named(level))
                spots.append(
                    Spot(until(series.groups[-1]), level.median, f"{named(level)}: {score.text(level.median)}")
                )
        axes.set_xlabel(f"{time} at which rewiring stopped")
        score_axis(axes, score, [*_scores(found), *(spot.y for spot in spots)])
        return spots

    return paint(f"{experiment.slug}-stopped", f"{score.words.capitalize()} against when rewiring stopped", alt, draw)


def _draw_series(axes: Axes, series: Series, its_look: Look) -> list[Spot]:
    for group in series.groups:
        draw_runs(axes, until(group), group.scores, its_look)
    epochs, medians = [until(group) for group in series.groups], [group.median for group in series.groups]
    line = axes.plot(epochs, medians, label=series.label)[0]
    its_look.on(line)
    return [
        Spot(until(group), group.median, f"{series.label}, until {until(group):g}: {group.score.text(group.median)}")
        for group in series.groups
    ]


def _scores(found: Sequence[Series]) -> list[float]:
    return [score for series in found for group in series.groups for score in group.scores]


def _compressed(experiment: Experiment, series: Series) -> list[Group]:
    return [g for g in experiment.groups if g.name == "Compressed" and g.sparsity == series.groups[0].sparsity]
