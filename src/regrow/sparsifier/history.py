"""What happened to the topology: one record per rewiring."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rewiring:
    """How many units each layer lost and got after `step`, and the threshold they were pruned by, if any."""

    step: int
    pruned: dict[str, int]
    grown: dict[str, int]
    threshold: float | None = None

    def plus(self, later: "Rewiring") -> "Rewiring":
        """Both in one record: the totals, at the later step."""
        return Rewiring(
            later.step,
            {name: count + later.pruned[name] for name, count in self.pruned.items()},
            {name: count + later.grown[name] for name, count in self.grown.items()},
            later.threshold,
        )


@dataclass
class History:
    """All rewirings; for methods that rewire after every step one record of totals, which does not grow."""

    totals_only: bool
    records: list[Rewiring] = field(default_factory=list)

    def add(self, record: Rewiring) -> None:
        if self.totals_only and self.records:
            self.records = [self.records[0].plus(record)]
        else:
            self.records.append(record)

    def state(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self.records]

    def load(self, state: list[dict[str, Any]]) -> None:
        self.records = [Rewiring(**record) for record in state]


class Callbacks(list[Callable[[Rewiring], object]]):
    """A list of functions to call with each record; calling it adds one, so that it also works as a decorator."""

    def __call__(self, callback: Callable[[Rewiring], object]) -> Callable[[Rewiring], object]:
        self.append(callback)
        return callback
