"""What happened to the topology: one record per rewiring."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

MOST_RECORDS = 10_000


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


class History:
    """The last rewirings, and the totals of all; for methods that rewire after every step the totals alone."""

    def __init__(self, totals_only: bool) -> None:
        self._recent: deque[Rewiring] = deque(maxlen=0 if totals_only else MOST_RECORDS)
        self._totals_only = totals_only
        self.totals: Rewiring | None = None

    @property
    def records(self) -> list[Rewiring]:
        return self._all_in_one() if self._totals_only else list(self._recent)

    def _all_in_one(self) -> list[Rewiring]:
        return [] if self.totals is None else [self.totals]

    def add(self, record: Rewiring) -> None:
        self._recent.append(record)
        self.totals = record if self.totals is None else self.totals.plus(record)

    def state(self) -> dict[str, Any]:
        """Tuples, which torch.distributed.checkpoint takes as one thing each however many records there are."""
        return {
            "history": tuple(asdict(record) for record in self.records),
            "totals": tuple(asdict(record) for record in self._all_in_one()),
        }

    def load(self, records: Iterable[dict[str, Any]], totals: Iterable[dict[str, Any]]) -> None:
        self._recent.clear()
        self._recent.extend(Rewiring(**record) for record in records)
        self.totals = next((Rewiring(**record) for record in totals), None)


class Callbacks(list[Callable[[Rewiring], object]]):
    """A list of functions to call with each record; calling it adds one, so that it also works as a decorator."""

    def __call__(self, callback: Callable[[Rewiring], object]) -> Callable[[Rewiring], object]:
        self.append(callback)
        return callback
