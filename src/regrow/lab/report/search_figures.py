"""What runs on held-out data are judged by, against what was searched."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from regrow.lab.report.axes import log_axis, score_axis
from regrow.lab.report.canvas import Picture, Plate, Spot, View, draw_runs, paint
from regrow.lab.report.formats import slug
from regrow.lab.report.palette import Look, look
from regrow.lab.report.results import Experiment
from regrow.lab.report.searched import Series, title_of

_WIDE = 5.0
_MOST_MARKS = 6  # beside each other; more than that are on a scale


def search_plate(experiment: Experiment, found: Sequence[Series]) -> Plate:
    """A picture for each setting that was searched."""
    settings = dict.fromkeys(series.setting for series in found)
    pictures = [_picture(experiment, setting, [s for s in found if s.setting == setting]) for setting in settings]
    caption = "Each point is a trial, or the median of several; the largest point of a line is the best."
    return Plate("Searched", caption, [View(pictures)])


def _picture(experiment: Experiment, setting: str, found: Sequence[Series]) -> Picture:
    score, title = experiment.score, title_of(setting)
    bests = [f"{one.label}: {score.text(one.groups[one.best].median)} at {one.values[one.best]:g}" for one in found]

    def draw(axes: Axes) -> list[Spot]:
        values = [value for series in found for value in series.values]
        if min(values) > 0 and max(values) > _WIDE * min(values):
            axes.set_xscale("log")
        seen: dict[str, int] = {}
        spots: list[Spot] = []
        for series in found:
            family = series.groups[0].family
            seen[family] = seen.get(family, -1) + 1
            spots += _draw(axes, series, look(family, seen[family]))
        if axes.get_xscale() == "log":
            log_axis(axes.xaxis, lambda value: f"{value:g}")
        if len(tried := sorted(set(values))) <= _MOST_MARKS:
            axes.set_xticks(tried, [f"{value:g}" for value in tried])
        axes.set_xlabel(title)
        score_axis(axes, score, [own for series in found for group in series.groups for own in group.scores])
        axes.set_ylabel(axes.get_ylabel().replace("test ", "held-out ", 1).replace(" (lower is better)", ""))  # is long
        return spots

    name = f"{experiment.slug}-searched-{slug(setting.rpartition('.')[2])}"
    what = f"Held-out {score.words} against {title}"
    return paint(name, what, f"{what}. {'; '.join(bests)}.", draw)


def _draw(axes: Axes, series: Series, its_look: Look) -> list[Spot]:
    medians = [group.median for group in series.groups]
    line = axes.plot(series.values, medians, label=series.label)[0]
    its_look.on(line)
    best = axes.plot(series.values[series.best], medians[series.best], linestyle="", markersize=10)[0]
    its_look.on(best)
    for value, group in zip(series.values, series.groups, strict=True):
        draw_runs(axes, value, group.scores, its_look)
    score = series.groups[0].score
    return [Spot(x, y, f"{series.label}, {x:g}: {score.text(y)}") for x, y in zip(series.values, medians, strict=True)]
