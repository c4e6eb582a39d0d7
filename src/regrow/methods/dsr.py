"""DSR: dynamic sparse reparameterization (Mostafa & Wang, ICML 2019, algorithm 1).

Every `period` steps all weights below one threshold H, the same for the whole network, are pruned; as many grow at
random, each layer getting a share proportional to its surviving weights. H doubles when fewer than (1 - tolerance)
times `prune` units went and halves when more than (1 + tolerance) times did, from the next rewiring on.

Where we differ from the authors' code: the budget is exact (largest remainder under capacities instead of handing
rounding errors to a random layer); a just-pruned position never returns in the same rewiring; optimizer state is
cleared where a weight is pruned; H is part of the state that is saved. As in their code a layer keeps its last unit.
"""

from collections.abc import Sequence

from regrow.core.evidence import Evidence, Units
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.rules import allot, prune
from regrow.methods.method import Method, check, is_number, is_whole, method

# A threshold that no network can meet must not run off to 0 or infinity, from where doubling never returns.
_LOWEST, _HIGHEST = 2.0**-100, 2.0**100


@method
class DSR(Method):
    """`prune`: units to prune in each rewiring, a count or a fraction of the active ones. `tolerance`: by what share of
    it the number that went may miss it before H changes. `threshold`: the first H, below which weights are pruned.
    """

    prune: int | float = 0.1
    tolerance: float = 0.1
    threshold: float = 1e-3

    until_only_stops = True

    def __post_init__(self) -> None:
        super().__post_init__()
        is_count = is_whole(self.prune) and self.prune >= 0
        is_fraction = isinstance(self.prune, float) and 0 <= self.prune <= 1
        check(is_count or is_fraction, f"prune must be a count of units or a fraction in [0, 1], got {self.prune!r}")
        check(
            is_number(self.tolerance) and 0 <= self.tolerance < 1, f"tolerance must be in [0, 1), got {self.tolerance}"
        )
        check(
            is_number(self.threshold) and _LOWEST <= self.threshold <= _HIGHEST,
            f"threshold must be a positive number, got {self.threshold!r}",
        )

    @property
    def regrows_in_place(self) -> bool:
        return False

    def first_memory(self) -> Memory:
        return {"threshold": float(self.threshold)}

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        return prune.below_threshold(evidence, memory["threshold"])

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return allot.by_survivors(tally)

    def next_memory(self, memory: Memory, tally: Tally) -> Memory:
        target = self.prune if is_whole(self.prune) else round(self.prune * sum(tally.active))
        target = min(target, sum(tally.free))
        pruned, threshold = sum(tally.pruned), memory["threshold"]
        if pruned < (1 - self.tolerance) * target:
            threshold = min(2 * threshold, _HIGHEST)
        elif pruned > (1 + self.tolerance) * target:
            threshold = max(threshold / 2, _LOWEST)
        return {"threshold": threshold}
