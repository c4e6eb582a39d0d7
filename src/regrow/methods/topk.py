"""TopK: networks sparse enough to be understood (Gao et al., 2025).

The optimizer trains every place. After each step, or every `period` steps, the largest weights of each tensor stay and
all others are set to 0; gradients and moments of the others live on, so that what was pruned comes back when its
updates make it large enough. All tensors are equally dense: fully at first, then along a line down to their share of
the target, which they reach at the share `ramp` of `until`.

Where we differ: in the original the largest are taken to the end of training, here to `until`, after which the network
trains with what it has. AdamW's eps of .1 and the learning rate that grows as 1/sqrt(density) are the optimizer's.
"""

from collections.abc import Sequence
from math import prod
from operator import sub
from typing import ClassVar

import torch

from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import Quantities
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.units import Layer
from regrow.methods.method import Method, check, check_fraction, is_whole, method


@method
class TopK(Method):
    """`floor`: so many weights of each output and of each input of a matrix stay, whatever they are.

    `begin`: the step up to which all weights stay. `ramp`: the share of `until` at which the target is reached.
    """

    period: int = 1
    until: int | None = 10_000
    floor: int = 0
    begin: int = 0
    ramp: float = 0.5

    needs = frozenset({"dense_step", "changing_budget"})
    rewires_every_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_whole(self.floor) and self.floor >= 0, f"floor must be a whole number >= 0, got {self.floor!r}")
        check(
            self.floor == 0 or self.granularity == "weight",
            f"a floor counts single weights; use granularity='weight', not {str(self.granularity)!r}",
        )
        check_fraction("ramp", self.ramp)
        check(is_whole(self.begin) and self.begin >= 0, f"begin must be a step number, got {self.begin!r}")
        check(
            self.until is not None and self.until > 0,
            f"until must be a step, after which nothing changes; got {self.until!r}",
        )
        check(
            self.begin <= self._end,
            f"begin ({self.begin}) must not lie after the end of the ramp, {self.ramp:g} of until ({self.until})",
        )

    @property
    def _end(self) -> int:
        """The step at which the target is reached."""
        assert self.until is not None
        return round(self.ramp * self.until)

    def is_due(self, step: int) -> bool:
        return step == self.until or super().is_due(step)

    def check_layers(self, layers: Sequence[Layer], tally: Tally) -> None:
        for layer, goal in zip(layers, tally.goal, strict=True):
            most = _most_in_a_floor(layer.shape, self.floor)
            check(
                most <= goal,
                f"a floor of {self.floor} for each output and input may take {most:,} weights of {layer.name}, whose "
                f"budget is {goal:,}; lower the floor or the sparsity",
            )

    def budget_at(self, step: int, tally: Tally) -> int:
        return tally.weights_in(self._counts_at(step, tally))

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        largest = self._largest(evidence)

        def is_largest(units: Quantities) -> torch.Tensor:
            return torch.isin(units.position, largest.positions.to(units.position.device))

        return evidence.below(0.5, is_largest)

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return list(map(sub, self._counts_at(evidence.step, tally), tally.survivors))

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        largest = self._largest(evidence)
        is_new = ~torch.isin(largest.positions, evidence.position.to(largest.positions.device))
        return Units(largest.positions[is_new], counts)

    def _largest(self, evidence: Evidence) -> Units:
        """What is left, of active and inactive places alike."""
        counts = self._counts_at(evidence.step, evidence.tally)
        return evidence.largest(counts, floor={0: self.floor, 1: self.floor} if self.floor else None)

    def _counts_at(self, step: int, tally: Tally) -> list[int]:
        """How many units each layer has after a step."""
        done = 1.0 if step >= self._end else max(step - self.begin, 0) / max(self._end - self.begin, 1)
        return [units - round((units - goal) * done) for units, goal in zip(tally.num_units, tally.goal, strict=True)]


def _most_in_a_floor(shape: Sequence[int], floor: int) -> int:
    """How many weights the largest of each output and of each input may be, if no weight is both.

    >>> _most_in_a_floor((3, 5), 2)
    15
    """
    if len(shape) < 2:
        return 0
    size = prod(shape)
    return min(size, sum(num * min(floor, size // num) for num in shape[:2]))
