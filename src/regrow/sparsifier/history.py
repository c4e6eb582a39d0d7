"""What happened to the topology: one record per rewiring."""

from collections.abc import Callable
from dataclasses import dataclass

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


class Callbacks(list[Callable[[Rewiring], object]]):
    """A list of functions to call with each record; calling it adds one, so that it also works as a decorator."""

    def __call__(self, callback: Callable[[Rewiring], object]) -> Callable[[Rewiring], object]:
        self.append(callback)
        return callback
