"""SNFS: sparse networks from scratch (Dettmers & Zettlemoyer, 2019), also called sparse momentum.

A running mean of the dense gradient, the momentum, is kept for every position. Every `period` steps each layer loses
the smallest `fraction` of its weights; what was lost is shared among the layers in proportion to the mean momentum
magnitude of their weights, and grows where the momentum of free places is largest. The fraction falls to 0
at `until` along a cosine.

Where we differ: the momentum is our own and does not depend on the optimizer; the whole-number shares are exact.
"""

from collections.abc import Sequence

from regrow.core.evidence import Evidence, Units
from regrow.core.row import Tally
from regrow.core.rules import allot, grow, prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check_fraction, method


@method
class SNFS(Method):
    """`fraction`: of each layer's units at step 0, falling to none at `until`; constant where `until` is None.

    `momentum`: how much of the running mean is kept each step.
    """

    fraction: float = 0.5
    momentum: float = 0.9

    needs = frozenset({"mean_gradient"})
    falls = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("fraction", self.fraction)
        check_fraction("momentum", self.momentum)

    @property
    def gradient_decay(self) -> float:
        return self.momentum

    @property
    def regrows_in_place(self) -> bool:
        return False

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.active)

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return allot.by_merit(tally, evidence.mean_of_each(grow.mean_gradient_magnitude))

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        return evidence.largest_free(counts, grow.mean_gradient_magnitude)
