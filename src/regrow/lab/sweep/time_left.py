"""How long runs still take: by their own speed, or by what others of their kind took."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from regrow.lab.config import Config
from regrow.lab.report.formats import roughly, several
from regrow.lab.run.folder import BadRun, RunFolder
from regrow.lab.run.loop import Progress
from regrow.lab.sweep.plan import Plan

_LONG_ENOUGH = 2.0
"""Seconds to watch a run before its speed says anything."""
Part = tuple[Config, float]
"""A run, and the share of it that is left."""


class Pace:
    """What whole runs take, told by others of their kind, or at least on the same model and data; longer ones more."""

    def __init__(self, known: Iterable[tuple[Config, float]] = ()) -> None:
        self._seen: dict[Hashable, list[float]] = defaultdict(list)
        for config, seconds in known:
            for kind in _kinds(config):
                self._seen[kind].append(seconds / config.duration)

    def seconds(self, part: Part) -> float | None:
        """Of a part of a run; None where nothing like it was seen."""
        config, share = part
        found = next((self._seen[kind] for kind in _kinds(config) if kind in self._seen), None)
        return share * config.duration * mean(found) if found else None


def finished_under(root: Path, device: str) -> list[tuple[Config, float]]:
    """What the runs below a folder took that were finished on such a device."""
    found = []
    for path in sorted(root.glob("**/summary.json")):
        folder = RunFolder(path.parent)
        try:
            summary, config = folder.summary(), folder.config()
        except BadRun:
            continue
        made_with = summary.get("provenance") if summary else None
        if summary and isinstance(made_with, dict) and made_with.get("device") == device:
            found.append((config, float(summary["seconds"])))
    return found


def estimate(plan: Plan, pace: Pace, at_once: int) -> str:
    """How many runs there are, and how long those to do take, as far as that is known."""
    count = f"{several(len(plan.runs), 'run')}, {len(plan.finished)} done"
    each = [pace.seconds((plan.runs[run], share)) for run, share in plan.left.items()]
    known = [seconds for seconds in each if seconds is not None]
    if not each:
        return count
    if not known:
        return f"{count}; no finished run tells yet how long they take"
    rest = "" if len(known) == len(each) else f" for {len(known)} of {len(each)}; no finished run tells of the others"
    return f"{count}, about {roughly(max(max(known), sum(known) / at_once))}{rest}"


@dataclass
class Going:
    """A run in flight: how much of it was left, how far it was when it first said something, how far it is now."""

    config: Config
    left: float
    began: float
    first: tuple[float, Progress] | None = None
    last: tuple[float, Progress] | None = None

    def hear(self, far: Progress, now: float) -> None:
        self.last = (now, far)
        self.first = self.first or self.last

    @property
    def share(self) -> float:
        """Of the whole run that is done."""
        return self.last[1].step / self.last[1].num_steps if self.last else 1 - self.left

    @property
    def seconds_whole(self) -> float | None:
        """What the whole run takes at its speed so far; None while that says little."""
        if self.first is None or self.last is None:
            return None
        watched, steps = self.last[0] - self.first[0], self.last[1].step - self.first[1].step
        return watched / steps * self.last[1].num_steps if watched >= _LONG_ENOUGH and steps else None

    @property
    def seconds_left(self) -> float | None:
        whole = self.seconds_whole
        return None if whole is None else whole * (1 - self.share)

    def seconds_until(self, end: float) -> float | None:
        """What a whole run takes, its start included, as one that has come to its end tells."""
        return (end - self.began) / self.left if self.left else None


def time_left(going: Sequence[Going], waiting: Sequence[Part], ended: Sequence[tuple[Config, float]]) -> float | None:
    """Of all together, as many at a time as now; None while some of it cannot be told."""
    pace = Pace([*ended, *((one.config, whole) for one in going if (whole := one.seconds_whole) is not None)])
    flying = [own if (own := one.seconds_left) is not None else pace.seconds((one.config, one.left)) for one in going]
    each = [*flying, *map(pace.seconds, waiting)]
    known = [seconds for seconds in each if seconds is not None]
    if not known or len(known) < len(each):
        return None
    return max(max(known), sum(known) / max(len(going), 1))


def _kinds(config: Config) -> list[Hashable]:
    """What runs that take as long for an epoch have in common, and what those have that take about as long."""
    place = (config.model.in_words(), config.data.in_words(), config.batch_size, config.max_steps is None)
    return [(*place, config.method_name, config.width, config.storage, config.precision), place]
