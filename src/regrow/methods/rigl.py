"""RigL: rigging the lottery (Evci et al., ICML 2020).

Every `period` steps each layer loses the smallest `fraction` of its weights and grows as many where the gradient of
the loss is largest. The fraction falls to 0 at `until` along a cosine. Layers start with ERK densities.

Where we differ: the original skips the optimizer's update in a step that rewires; ours does not. The gradient is the
one of that step, dense, as it was before masking (the sum over all backward passes where gradients accumulate).
A just-pruned position does not return in the same rewiring.
"""

from collections.abc import Sequence

from regrow.core.densities import Distribution
from regrow.core.evidence import Evidence, Units
from regrow.core.row import Tally
from regrow.core.rules import prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check_fraction, method


@method
class RigL(Method):
    """`fraction`: of each layer's units at step 0, falling to none at `until`; constant where `until` is None."""

    distribution: Distribution = "erk"
    fraction: float = 0.3

    needs = frozenset({"free_gradient"})
    falls = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("fraction", self.fraction)

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.free)

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        return evidence.largest_free(counts, lambda units: self.growth_score(units.gradient))
