"""The network in whole numbers, the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul, sub


@dataclass(frozen=True)
class Tally:
    """The whole row in whole numbers, one entry per layer.

    `target`: the weights that are active in the end; `budget`: those that are to be active now. `goal`: the active
    units that the target and the method's distribution give each layer. `pruned`: how many units go, all 0 while that
    is not yet known.
    """

    unit_sizes: tuple[int, ...]
    num_units: tuple[int, ...]
    active: tuple[int, ...]
    goal: tuple[int, ...]
    target: int
    budget: int
    pruned: tuple[int, ...]

    @cached_property
    def free(self) -> list[int]:
        """Places that were free before pruning: where a unit may grow, since a just-pruned one may not return."""
        return list(map(sub, self.num_units, self.active))

    @cached_property
    def survivors(self) -> list[int]:
        return list(map(sub, self.active, self.pruned))

    @cached_property
    def open_weights(self) -> int:
        """How many weights may grow: the budget less what survives."""
        return self.budget - self.weights_in(self.survivors)

    def weights_in(self, counts: Sequence[int]) -> int:
        """How many weights so many units of each layer are."""
        return sum(map(mul, counts, self.unit_sizes))

    def of(self, layers: Sequence[int]) -> "Tally":
        """Some of the layers, whose budget is what they hold."""

        def pick(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(numbers[i] for i in layers)

        sizes, active = pick(self.unit_sizes), pick(self.active)
        held: int = sum(map(mul, active, sizes))
        return Tally(sizes, pick(self.num_units), active, pick(self.goal), held, held, pick(self.pruned))
