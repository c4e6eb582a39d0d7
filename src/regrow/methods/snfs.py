"""SNFS: sparse networks from scratch (Dettmers & Zettlemoyer, 2019), also called sparse momentum.

A running mean of the dense gradient, the momentum, is kept for every position. Every `period` steps each layer loses
the smallest `fraction` of its weights; what was lost is shared among the layers in proportion to the mean momentum
magnitude of their weights, and grows where the momentum of free places is largest. The fraction falls to 0
at `until` along a cosine.

Where we differ: the momentum is our own and does not depend on the optimizer; the whole-number shares are exact.
"""

from collections.abc import Sequence

from torch import Tensor

from regrow.core.row import Stretch, Tally
from regrow.core.rules import allot, grow, prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check, is_number, method


@method
class SNFS(Method):
    """`fraction`: as in RigL. `momentum`: how much of the running mean is kept each step."""

    fraction: float = 0.5
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("fraction", "momentum"):
            value = getattr(self, name)
            check(is_number(value) and 0 <= value <= 1, f"{name} must be in [0, 1], got {value!r}")

    @property
    def gradient_memory(self) -> float | None:
        return self.momentum

    @property
    def regrows_in_place(self) -> bool:
        return False

    def how_many_go(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.active)

    def how_many_come(self, tally: Tally, stretches: Sequence[Stretch], key: int) -> list[int]:
        merits = [merit for stretch in stretches for merit in allot.mean_score_of_active(stretch)]
        return allot.by_merit(tally, merits)

    def which_come(self, stretch: Stretch, wanted: Sequence[int], key: int) -> Tensor:
        return grow.by_score(stretch, wanted)
