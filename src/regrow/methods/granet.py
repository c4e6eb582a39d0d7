"""GraNet: gradual pruning with neuroregeneration (Liu et al., NeurIPS 2021).

The network starts at `first_sparsity`. Every `period` steps the smallest weights of the whole network go, as many as
the budget has fallen by: the sparsity rises along a cubic ramp to its target, which it reaches at the share `ramp` of
`until`. In the same rewiring each layer then loses the smallest `fraction` of what is left, and as many grow where the
gradient of the loss is largest. The fraction falls to 0 at `until` along a cosine. Layers start with ERK densities.

Where we differ: the original skips the optimizer's update in a step that rewires, and its fraction falls to 0.005.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from operator import add, sub

from regrow.core.densities import Distribution
from regrow.core.evidence import Evidence, Units
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.rules import prune
from regrow.core.schedules import cosine, cubic
from regrow.methods.method import Method, check, check_fraction, check_sparsity, method


@method
class GraNet(Method):
    """`fraction`: of each layer's units, falling to none at `until`. `first_sparsity`: that of the network at step 0.

    `ramp`: the share of `until` at which the sparsity has reached its target.
    """

    until: int | None = 10_000
    distribution: Distribution = "erk"
    fraction: float = 0.5
    first_sparsity: float = 0.5
    ramp: float = 0.7

    needs = frozenset({"free_gradient", "changing_budget"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.until is not None and self.until > 0,
            f"until must be a step, after which nothing changes; got {self.until!r}",
        )
        check_fraction("fraction", self.fraction)
        check_fraction("ramp", self.ramp)
        check_sparsity(self.first_sparsity)

    def is_due(self, step: int) -> bool:
        return step == self.until or super().is_due(step)

    def budget_at(self, step: int, tally: Tally) -> int:
        assert self.until is not None
        first = round((1 - self.first_sparsity) * tally.weights_in(tally.num_units))
        fall = max(first - tally.target, 0)
        done = cubic(1.0, step, max(round(self.ramp * self.until), 1))
        return min(tally.target + fall - round(fall * done), tally.budget)

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        tally, surplus = evidence.tally, self._surplus(evidence)
        left = list(map(sub, tally.active, surplus))
        fraction = cosine(self.fraction, evidence.step, self.until)
        # Of each layer the surplus is the smallest, too, so that both together are.
        return evidence.smallest(list(map(add, surplus, prune.fraction_of_each(fraction, left, tally.free))))

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return list(map(sub, tally.pruned, self._surplus(evidence)))

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        return evidence.largest_free(counts, lambda units: self.growth_score(units.gradient))

    def _surplus(self, evidence: Evidence) -> Sequence[int]:
        """How many units of each layer are among the smallest of the network that are over its budget."""
        tally = evidence.tally
        excess = tally.weights_in(tally.active) - tally.budget
        if excess <= 0:
            return [0] * len(tally.active)

        def weights_in(count: int) -> int:
            return tally.weights_in(evidence.smallest_of_all(count).counts)

        fewest, most = (ceil(excess / size(tally.unit_sizes)) for size in (max, min))
        count = fewest + bisect_left(range(fewest, most), excess, key=weights_in)
        return evidence.smallest_of_all(count).counts
