"""Which runs differ in nothing but when they stopped rewiring."""

from dataclasses import dataclass, replace

from regrow.lab.report.labels import departures
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
            alike.setdefault(named(group), []).append(group)
    return [Series(label, tuple(sorted(groups, key=until))) for label, groups in alike.items() if len(groups) > 1]


def named(group: Group) -> str:
    """What it is called, whenever it stopped."""
    parts = [part for part in group.label.split(", ") if part != departures(group.config).get(_KEY)]
    return ", ".join([*parts, f"sparsity {group.sparsity:g}"])


def without_variants(experiment: Experiment) -> Experiment:
    """Without what stopped early, where it has a figure of its own beside what stopped as in the paper."""
    shown = [group for series in series_of(experiment) if series.has_the_paper for group in series.groups]
    early = [group for group in shown if _KEY in departures(group.config)]
    return replace(experiment, groups=[group for group in experiment.groups if group not in early])
