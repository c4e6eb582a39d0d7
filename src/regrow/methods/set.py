"""SET: sparse evolutionary training (Mocanu et al., Nature Communications 2018).

Every `period` steps each layer loses the smallest `fraction` of its weights and regrows as many at random.

Where we differ: the original prunes the smallest positive and the largest negative weights apart and once per epoch;
like the DSR paper we go by magnitude and by steps.
"""

from regrow.core.apportion import apportion
from regrow.core.row import Tally
from regrow.core.rules import prune
from regrow.methods.method import Method, check, is_whole, method


@method
class SET(Method):
    """`fraction`: of each layer's units, or a whole number of units for the network, shared in proportion."""

    fraction: float | int = 0.3

    until_only_stops = True

    def __post_init__(self) -> None:
        super().__post_init__()
        is_count = is_whole(self.fraction) and self.fraction >= 0
        is_fraction = isinstance(self.fraction, float) and 0 <= self.fraction <= 1
        check(is_count or is_fraction, f"fraction must be in [0, 1] or a count of units, got {self.fraction!r}")

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        if is_whole(self.fraction):
            room = [min(active - 1, free) for active, free in zip(tally.active, tally.free, strict=True)]
            return apportion(tally.active, min(int(self.fraction), sum(room)), room)
        return prune.fraction_of_each(self.fraction, tally.active, tally.free)
