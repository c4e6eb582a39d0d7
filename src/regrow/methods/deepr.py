"""DeepR: deep rewiring (Bellec et al., ICLR 2018).

Every position has a fixed sign; a weight is its sign times a parameter theta >= 0. After each step of the optimizer,
which stands for -rate dE/dtheta, every active theta drifts by -rate * l1 and gets noise of variance 2 rate T. Where
theta < 0 the connection goes dormant, and as many dormant ones, chosen at random, are reactivated at 0: in the same
layer, or (`scope="network"`) anywhere.

Weights that are active at the start have their own signs; what is reactivated later has that of its position, which is
drawn at random. A connection that crossed zero but may not go, because it is the last of its layer or no dormant place
is left to replace it, keeps its value and tries again in the next step.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from regrow.core.evidence import Evidence, Units
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.rules import allot, prune
from regrow.core.schedules import Schedule, value_at
from regrow.methods.effects.effect import Effect
from regrow.methods.effects.random_walk import RandomWalk
from regrow.methods.effects.signs import Signs
from regrow.methods.method import Method, check, is_number, is_whole, method


@method
class DeepR(Method):
    """`temperature`: of the noise, a number, {first step: number} or a function of the step. `l1`: the drift.

    `scope`: where as many are reactivated as went dormant, "layer" or "network".
    """

    period: int | Mapping[int, int] = 1
    l1: float = 1e-5
    temperature: Schedule = 1e-9
    scope: Literal["layer", "network"] = "layer"

    needs = frozenset({"sign"})
    until_only_stops = True
    rewires_every_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.scope in ("layer", "network"), f'scope must be "layer" or "network", got {self.scope!r}')
        check(self.granularity == "weight", "DeepR goes by the signs of single weights; use granularity='weight'")
        if isinstance(self.temperature, Mapping):
            check(
                0 in self.temperature,
                f"a temperature given by first steps must begin at step 0, got {self.temperature}",
            )
            check(
                all(map(is_whole, self.temperature)), f"temperatures must begin at whole steps, got {self.temperature}"
            )
            temperatures = list(self.temperature.values())
        else:
            temperatures = [value_at(self.temperature, 0)]
        for temperature in temperatures:
            check(
                is_number(temperature) and temperature >= 0, f"temperature must be a number >= 0, got {temperature!r}"
            )

    @property
    def regrows_in_place(self) -> bool:
        return self.scope == "layer"

    def effects(self) -> list[Effect]:
        return [Signs(), RandomWalk(self)]  # which does the pull towards zero, too

    def temperature_at(self, step: int) -> float:
        temperature = value_at(self.temperature, step)
        check(temperature >= 0, f"the temperature is {temperature} at step {step}; it must not fall below 0")
        return temperature

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        return evidence.below(0.0, prune.distance_from_zero)

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        return list(tally.pruned) if self.scope == "layer" else allot.by_room(tally, key)
