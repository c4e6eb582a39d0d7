"""MEST: memory-economic sparse training (Yuan et al., NeurIPS 2021), with elastic mutation (EM).

Every `period` steps each layer loses the `fraction` of its weights with the smallest abs(w) + mix * abs(gradient), of
the gradient at active weights only, and regrows as many at random. The fraction falls to 0 at `until` along a cosine.

Where we differ: theirs falls in a few steps and rewires once in several epochs. Their variant with soft bound (EM&S)
grows before it prunes and so overshoots the budget; it is not here.
"""

from collections.abc import Sequence

from torch import Tensor

from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import Quantities
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.rules import prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check, check_fraction, is_number, method


@method
class MEST(Method):
    """`fraction`: of each layer's units at step 0, falling to none at `until`. `mix`: the weight of the gradient."""

    fraction: float = 0.3
    mix: float = 0.01

    needs = frozenset({"gradient"})
    falls = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("fraction", self.fraction)
        check(is_number(self.mix) and self.mix >= 0, f"mix must be a number >= 0, got {self.mix!r}")

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.free)

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        def score(units: Quantities) -> Tensor:
            return prune.magnitude_and_gradient(units, self.mix)

        return evidence.smallest(counts, score)
