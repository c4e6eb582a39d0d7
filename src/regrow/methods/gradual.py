"""Gradual pruning (Zhu & Gupta, 2017): dense at first, then pruned by magnitude to the target; nothing grows.

The paper of DSR calls the result "compressed sparse": train densely, then prune from `begin` to `until`, every
`period` steps, along sparsity(t) = s (1 - (1 - t)^3), t running from 0 to 1. Each layer approaches its own final count,
which together are exactly the budget. Until then the network holds more weights than the budget.
"""

from collections.abc import Sequence
from typing import ClassVar

from regrow.core.row import Stretch, Tally
from regrow.core.rules import allot
from regrow.core.schedules import cubic
from regrow.methods.method import Method, check, is_whole, method


@method
class Gradual(Method):
    """`begin` and `until`: the steps between which the network is pruned."""

    until: int | None = 10_000
    begin: int = 0

    keeps_budget: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_whole(self.begin) and self.begin >= 0, f"begin must be a step number, got {self.begin!r}")
        check(
            self.until is not None and self.until > self.begin,
            f"until must be a step after begin ({self.begin}), when the target is reached; got {self.until!r}",
        )

    def is_due(self, step: int) -> bool:
        return step == self.until or (step >= self.begin and super().is_due(step))

    def how_many_go(self, tally: Tally, step: int) -> list[int]:
        assert self.until is not None
        done = cubic(1.0, max(step - self.begin, 0), self.until - self.begin)
        targets = [
            units - round((units - goal) * done) for units, goal in zip(tally.num_units, tally.goal, strict=True)
        ]
        return [max(active - target, 0) for active, target in zip(tally.active, targets, strict=True)]

    def how_many_come(self, tally: Tally, stretches: Sequence[Stretch], key: int) -> list[int]:
        return allot.nothing(tally)
