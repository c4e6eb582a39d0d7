"""GSE: guided stochastic exploration (Heddes, Srinivasa, Givargis & Nicolau, 2024), with uniform candidates.

Every `period` steps places of each layer are drawn at random, `sample` times as many as it has active units; those that
are active or drawn before do not count. The layer loses the smallest `fraction` of its weights, but no more than there
are candidates, and grows as many of these where the gradient of the loss is largest. The fraction falls to 0 at `until`
along a cosine. Layers start with ERK densities, as Erdős and Rényi's random graphs have them.

The gradient is needed at the candidates alone, about as many numbers as there are weights: packed storage never
computes it elsewhere, and ranks average it there.

Where we differ: theirs takes that gradient from a batch of its own, prunes across layers by default, draws an input and
an output rather than a place, and looks everywhere in layers that are at least half dense. Their other distributions of
candidates (GraBo, GraEst) are not here.
"""

from collections.abc import Sequence
from math import ceil

from regrow.core.densities import Distribution
from regrow.core.evidence import Evidence, Units
from regrow.core.row import Tally
from regrow.core.rules import grow, prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check, check_fraction, is_number, method


@method
class GSE(Method):
    """`fraction`: of each layer's units at step 0, falling to none at `until`; constant where `until` is None.
    `sample`: candidates drawn in each layer, times its active units.
    """

    distribution: Distribution = "erk"
    fraction: float = 0.3
    sample: float = 1.0

    needs = frozenset({"sampled_gradient"})
    falls = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("fraction", self.fraction)
        check(is_number(self.sample) and self.sample > 0, f"sample must be a number > 0, got {self.sample!r}")

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.free)

    def candidates(self, tally: Tally, step: int, key: int) -> Units:
        pairs = zip(tally.active, tally.free, strict=True)
        return grow.draw_places([ceil(self.sample * active) if free else 0 for active, free in pairs], tally, key)

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        return evidence.largest_free(counts, lambda units: self.growth_score(units.gradient), evidence.candidates)
