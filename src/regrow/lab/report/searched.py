"""What was searched: runs on held-out data that differ in nothing but the value of one setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from regrow.lab.report.formats import several
from regrow.lab.report.labels import flat_settings
from regrow.lab.report.results import Experiment, Group
from regrow.lab.report.story import listed
from regrow.lab.report.tables import Cell, Column, Grid
from regrow.lab.report.wording import name_of
from regrow.methods.method import is_number

_NOT_SEARCHED = ("width", "written_for", "stretch")


@dataclass(frozen=True)
class Series:
    """Groups that differ in one setting, by its value, the lowest first."""

    setting: str
    label: str
    groups: tuple[Group, ...]

    @property
    def values(self) -> list[float]:
        return [value_of(self.setting, group) for group in self.groups]

    @cached_property
    def best(self) -> int:
        """The number of the group that did best."""
        score = self.groups[0].score
        best = min if score.is_lower_better else max
        return best(range(len(self.groups)), key=lambda i: self.groups[i].median)

    @property
    def is_at_edge(self) -> bool:
        return self.best in (0, len(self.groups) - 1)


def value_of(setting: str, group: Group) -> float:
    return float(flat_settings(group.config)[setting])


def series_of(experiment: Experiment) -> list[Series]:
    """All that has more than one value of a setting; of a grid of two settings each line of it."""
    flat = [flat_settings(group.config) for group in experiment.groups]
    found = []
    for setting in sorted({key for own in flat for key, value in own.items() if is_number(value)}):
        alike: dict[str, list[Group]] = {}
        for group, own in zip(experiment.groups, flat, strict=True):
            if is_number(own.get(setting)) and setting not in _NOT_SEARCHED:
                rest = {key: value for key, value in own.items() if key != setting}
                alike.setdefault(repr((group.family, group.sparsity, sorted(rest.items(), key=str))), []).append(group)
        for groups in alike.values():
            if len({value_of(setting, group) for group in groups}) > 1:
                ordered = sorted(groups, key=lambda group: value_of(setting, group))
                found.append(Series(setting, _label(setting, ordered), tuple(ordered)))
    return found


def _label(setting: str, groups: Sequence[Group]) -> str:
    """What all of them are called, without the value."""
    first, *others = (group.label.split(", ") for group in groups)
    parts = [part for part in first if all(part in own for own in others)]
    sparsity = groups[0].sparsity
    return ", ".join([*parts, *([] if sparsity is None else [f"sparsity {sparsity:g}"])])


def title_of(setting: str) -> str:
    """A searched setting in words: "learning rate peak"."""
    table, _, _ = setting.rpartition(".")
    of_table = f"{table.replace('_', ' ')} " if table in ("learning_rate", "optimizer") else ""
    return f"{of_table}{name_of(setting)}"


def search_story(found: Sequence[Series]) -> str:
    """What was tried, how often, and where there may be better."""
    told = []
    for setting in dict.fromkeys(series.setting for series in found):
        of_it = [series for series in found if series.setting == setting]
        values = sorted({value for series in of_it for value in series.values})
        said = f"{title_of(setting)} {listed([f'{value:g}' for value in values])}"
        told.append(f"{said} for {several(len(of_it), 'row')} of the table")
    edges = [f"{series.label} ({series.values[series.best]:g})" for series in found if series.is_at_edge]
    beyond = f" The best lies at an edge of what was tried, and better may lie beyond, for {listed(edges)}."
    return (
        "A search, judged on a part held out of what was trained on; nobody looked at the test. Tried: "
        f"{'; '.join(told)}.{beyond if edges else ' No best lies at an edge of what was tried.'}"
    )


def search_grid(found: Sequence[Series]) -> Grid:
    """A row for each series: what was tried, and what did best."""
    score = found[0].groups[0].score
    columns = [
        Column("method", "method", is_number=False),
        Column("setting", "searched", is_number=False),
        Column("tried", "tried", is_number=False),
        Column("best", "best"),
        Column("score", score.title),
    ]
    return Grid(columns, [_row(series) for series in found])


def _row(series: Series) -> list[Cell]:
    group, value = series.groups[series.best], series.values[series.best]
    return [
        Cell(series.label, series.label, family=group.family),
        Cell(title_of(series.setting), series.setting),
        Cell(", ".join(f"{value:g}" for value in series.values), len(series.groups)),
        Cell(f"{value:g}", value, "at an edge" if series.is_at_edge else ""),
        Cell(group.score.spread(group.mean, group.sd), group.mean),
    ]
