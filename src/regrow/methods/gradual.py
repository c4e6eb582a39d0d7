"""Gradual pruning (Zhu & Gupta, 2017): dense at first, then pruned by magnitude to the target; nothing grows.

The paper of DSR calls the result "compressed sparse": train densely, then prune from `begin` to `until`, every
`period` steps, along sparsity(t) = s (1 - (1 - t)^3), t running from 0 to 1. Each layer approaches its own final count,
which together are exactly the budget. Until then the network holds more weights than the budget.
"""

from regrow.core.evidence import Evidence
from regrow.core.row import Tally
from regrow.core.schedules import cubic
from regrow.methods.method import Method, check, is_whole, method


@method
class Gradual(Method):
    """`begin` and `until`: the steps between which the network is pruned."""

    until: int | None = 10_000
    begin: int = 0

    needs = frozenset({"changing_budget"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_whole(self.begin) and self.begin >= 0, f"begin must be a step number, got {self.begin!r}")
        check(
            self.until is not None and self.until > self.begin,
            f"until must be a step after begin ({self.begin}), when the target is reached; got {self.until!r}",
        )

    def is_due(self, step: int) -> bool:
        return step == self.until or (step >= self.begin and super().is_due(step))

    def budget_at(self, step: int, tally: Tally) -> int:
        return tally.weights_in(self._counts_at(step, tally))

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return [active - left for active, left in zip(tally.active, self._counts_at(step, tally), strict=True)]

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return [0] * len(tally.active)

    def _counts_at(self, step: int, tally: Tally) -> list[int]:
        """How many units each layer is to have, of those it has now."""
        assert self.until is not None
        done = cubic(1.0, max(step - self.begin, 0), self.until - self.begin)
        return [
            min(active, units - round((units - goal) * done))
            for active, units, goal in zip(tally.active, tally.num_units, tally.goal, strict=True)
        ]
