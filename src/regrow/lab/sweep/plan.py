"""What a sweep has to do: its runs, those that they start from, and how much of each is left."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from regrow.lab.config import Config, parent_of
from regrow.lab.run.branches import find_trunks, parting_epoch
from regrow.lab.run.folder import BadRun, Row, RunFolder


@dataclass(frozen=True)
class Plan:
    """All runs by id, each after the one it starts from. `left`: the shares that are to be trained of those to do."""

    runs: dict[str, Config]
    left: dict[str, float]

    @property
    def finished(self) -> list[str]:
        return [run for run in self.runs if run not in self.left]


def make_plan(configs: Sequence[Config], root: Path) -> Plan:
    """What is finished under a folder is not done again, what was begun goes on, a branch begins where it parts."""
    runs = {config.id: config for config in with_parents(configs)}
    to_do = {run: config for run, config in runs.items() if not RunFolder(root / run).has_finished(config)}
    trunks = waiting_branches(to_do.values(), root)
    left = {run: 1 - share_done(config, root) for run, config in to_do.items()}
    left |= {run: min(left[run], 1 - parting_epoch(runs[run]) / runs[run].num_epochs) for run in trunks}
    return Plan(runs, left)


def with_parents(configs: Sequence[Config]) -> list[Config]:
    """The runs, and before each the one it starts from, once."""
    ordered: dict[str, Config] = {}
    for config in configs:
        parent = parent_of(config)
        for one in [*(with_parents([parent]) if parent else []), config]:
            ordered.setdefault(one.id, one)
    return list(ordered.values())


def waiting_branches(configs: Iterable[Config], root: Path) -> dict[str, str]:
    """Which of these runs wait for another one of them, by id, to come to where their ways part."""
    runs = {config.id: config for config in configs}
    found = find_trunks(runs.values())
    return {run: trunk for run, trunk in found.items() if len(_metrics(runs[trunk], root)) <= parting_epoch(runs[run])}


def share_done(config: Config, root: Path) -> float:
    """Of a run, by the last epoch that was noted."""
    rows = _metrics(config, root)
    if not rows:
        return 0.0
    done = len(rows) if config.max_steps is None else rows[-1]["step"]
    return min(done / config.duration, 1.0)


def _metrics(config: Config, root: Path) -> list[Row]:
    with suppress(BadRun):  # which it will say itself
        return RunFolder(root / config.id).read_table("metrics.csv")
    return []
