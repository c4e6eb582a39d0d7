"""Networks of different widths with as many active weights: is structure worth more than parameters?"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from regrow.lab.models import Model
from regrow.lab.report.axes import score_axis
from regrow.lab.report.canvas import Picture, Plate, Spot, View, draw_runs, paint
from regrow.lab.report.formats import short_count, slug
from regrow.lab.report.palette import Look, look
from regrow.lab.report.results import Experiment, Group
from regrow.lab.report.tables import Cell, Column, Grid

_OF_WIDTH = ("width", "heads")


@dataclass(frozen=True)
class Widths:
    """Groups with so many active weights in their sparse layers, the narrowest network first, the best of each kind."""

    active: str
    groups: tuple[Group, ...]

    @property
    def title(self) -> str:
        config = self.groups[0].config
        return f"Width at {self.active} active weights: {config.model.name} on {config.data.title}"

    @property
    def lines(self) -> dict[str, list[Group]]:
        """For each kind of sparse network the dense ones, which are the narrowest, and those of its kind."""
        dense = [group for group in self.groups if group.sparsity is None]
        families = dict.fromkeys(group.family for group in self.groups if group.sparsity is not None)
        return {name: [*dense, *(group for group in self.groups if group.family == name)] for name in families}


def width_of(group: Group) -> int:
    width: int = group.config.model.width  # type: ignore[attr-defined]
    return width


def widths_in(experiments: Sequence[Experiment]) -> list[Widths]:
    """All that have been trained in more than one width, with weights that are as many to three figures."""
    alike: dict[tuple[str, str], dict[tuple[int, str], list[Group]]] = {}
    for experiment in experiments:
        for group in experiment.groups if _has_width(experiment.config.model) else []:
            config = group.config
            if group.results[0].layers and not (config.is_thin or config.data.is_for_searching):
                rest = {key: value for key, value in config.model.settings().items() if key not in _OF_WIDTH}
                network = repr((rest, config.data.in_words(), config.length))
                kinds = alike.setdefault((network, active_of(group)), {})
                kinds.setdefault((width_of(group), group.family), []).append(group)
    found = []
    for (_, active), kinds in alike.items():
        if len({width for width, _ in kinds}) > 1:
            best = [_best(kinds[kind]) for kind in sorted(kinds)]
            found.append(Widths(active, tuple(best)))
    return found


def active_of(group: Group) -> str:
    return short_count(sum(layer.active for layer in group.representative.layers))


def _has_width(model: Model) -> bool:
    return hasattr(model, "width")


def _best(groups: Sequence[Group]) -> Group:
    """Of those that differ in something else."""
    sign = 1 if groups[0].score.is_lower_better else -1
    return min(groups, key=lambda group: sign * group.median)


def width_grid(found: Widths) -> Grid:
    """A row for each width and method."""
    score = found.groups[0].score
    columns = [
        Column("width", "width"),
        Column("method", "method", is_number=False),
        Column("sparsity", "sparsity"),
        Column("chosen", "chosen", is_number=False),
        Column("n", "n"),
        Column(score.key, score.title),
    ]
    return Grid(columns, [_row(group) for group in found.groups])


def _row(group: Group) -> list[Cell]:
    return [
        Cell(f"{width_of(group)}", width_of(group)),
        Cell(group.label, group.label, family=group.family),
        Cell("" if group.sparsity is None else f"{group.sparsity:g}", group.sparsity),
        Cell(group.chosen, group.chosen),
        Cell(f"{len(group.results)}", len(group.results)),
        Cell(group.score.spread(group.mean, group.sd), group.mean),
    ]


def width_plate(found: Widths) -> Plate:
    caption = "Lines join medians of networks with as many active weights, the dense one first; each pale dot is a run."
    return Plate(found.title, caption, [View([_picture(found)])])


def _picture(found: Widths) -> Picture:
    first = found.groups[0]
    what = f"{first.score.words.capitalize()} against width, {found.active} active weights"
    said = "; ".join(map(_said, found.groups))
    name = f"{slug(f'{first.config.model.name}-{first.config.data.in_words()}')}-width-{slug(found.active)}"
    return paint(name, what, f"{what}: {said}.", lambda axes: _draw(axes, found))


def _draw(axes: Axes, found: Widths) -> list[Spot]:
    axes.set_xscale("log", base=2)
    for family, groups in found.lines.items():
        its_look = look(family)
        line = axes.plot([width_of(g) for g in groups], [g.median for g in groups], label=family)[0]
        its_look.on(line)
    for group in found.groups:
        _draw_group(axes, group, look(group.family))
    widths = sorted({width_of(group) for group in found.groups})
    axes.xaxis.set_major_locator(FixedLocator(widths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("width")
    score_axis(axes, found.groups[0].score, [score for group in found.groups for score in group.scores])
    return [Spot(width_of(group), group.median, _said(group)) for group in found.groups]


def _draw_group(axes: Axes, group: Group, its_look: Look) -> None:
    """What is dense has a marker of its own, as it is on every line."""
    draw_runs(axes, width_of(group), group.scores, its_look)
    if group.sparsity is None:
        mark = axes.plot([width_of(group)], [group.median], linestyle="", label=group.family, zorder=4)[0]
        mark.set(color=its_look.colour.light, marker=its_look.marker)


def _said(group: Group) -> str:
    kind = group.family if group.sparsity is None else f"{group.family} {group.sparsity:g}"
    return f"{kind} at width {width_of(group)}: {group.score.text(group.median)}"
