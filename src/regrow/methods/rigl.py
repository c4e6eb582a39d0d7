"""RigL: rigging the lottery (Evci et al., ICML 2020).

Every `period` steps each layer loses the smallest `fraction` of its weights and grows as many where the gradient of
the loss is largest. The fraction falls to 0 at `until` along a cosine. Layers start with ERK densities.

Where we differ: the original skips the optimizer's update in a step that rewires; ours does not. The gradient is the
one of that step, dense, as it was before masking (the sum over all backward passes where gradients accumulate).
A just-pruned position does not return in the same rewiring.
"""

from collections.abc import Sequence

from torch import Tensor

from regrow.core.densities import Distribution
from regrow.core.row import Stretch, Tally
from regrow.core.rules import grow, prune
from regrow.core.schedules import cosine
from regrow.methods.method import Method, check, is_number, method


@method
class RigL(Method):
    """`fraction`: of each layer's units at step 0, falling to none at `until`; constant where `until` is None."""

    distribution: Distribution = "erk"
    fraction: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            is_number(self.fraction) and 0 <= self.fraction <= 1, f"fraction must be in [0, 1], got {self.fraction!r}"
        )

    @property
    def gradient_memory(self) -> float | None:
        return 0.0

    def how_many_go(self, tally: Tally, step: int) -> list[int]:
        return prune.fraction_of_each(cosine(self.fraction, step, self.until), tally.active, tally.free)

    def which_come(self, stretch: Stretch, wanted: Sequence[int], key: int) -> Tensor:
        return grow.by_score(stretch, wanted)
