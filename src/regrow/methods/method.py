"""What every method is made of: common fields, and the slots a rewiring calls."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from torch import Tensor

from regrow.core.densities import DISTRIBUTIONS, Distribution
from regrow.core.names import suggest
from regrow.core.row import Stretch, Tally
from regrow.core.rules import allot, grow, prune
from regrow.core.schedules import is_due
from regrow.core.units import GRANULARITIES, Granularity

METHODS: dict[str, "type[Method]"] = {}
Memory = dict[str, float]
Gone = tuple[Tensor, Sequence[int]]  # positions of units, ascending, and how many of them are in each layer
AnyMethod = TypeVar("AnyMethod", bound="type[Method]")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def method(cls: AnyMethod) -> AnyMethod:
    """Make a class a method: a frozen dataclass with keyword fields, known by its name."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    plain_init = made.__init__
    known = [field.name for field in fields(made)]
    needs_sparsity = any(field.name == "sparsity" and field.default is MISSING for field in fields(made))

    def __init__(self: Any, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            raise TypeError(f"{cls.__name__} takes its fields by name, e.g. {cls.__name__}(sparsity=0.9)")
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no field {name!r}; {suggest(name, known)}")
        if needs_sparsity and "sparsity" not in given:
            raise TypeError(f"{cls.__name__} needs a sparsity, e.g. {cls.__name__}(sparsity=0.9)")
        plain_init(self, **given)

    made.__init__ = __init__  # type: ignore[method-assign]
    METHODS[cls.__name__] = made
    return cast(AnyMethod, made)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The fields all methods share.

    `sparsity`: the fraction of positions that are inactive, over all sparse layers together. `period`: steps between
    rewirings, or {first step: period}. `until`: the step after which there are no more. `granularity`: what is pruned
    and grown as one. `distribution`: how the budget is shared among layers at the start. `l1`: strength of the pull of
    active weights towards 0.
    """

    sparsity: float
    period: int | Mapping[int, int] = 100
    until: int | None = None
    granularity: Granularity = "weight"
    distribution: Distribution = "uniform"
    l1: float = 0.0

    rewires: ClassVar[bool] = True
    keeps_budget: ClassVar[bool] = True
    """Whether the number of active weights is the budget from the first step on; if not, all are active at first."""
    walks: ClassVar[bool] = False
    """Whether weights drift between rewirings, each on the side of zero that its fixed sign says."""
    shares_values: ClassVar[bool] = False
    """Whether positions share values, all of them active, instead of being active or not: stored hashed."""

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        periods = self.period if isinstance(self.period, Mapping) else {0: self.period}
        check(0 in periods, f"a period given by first steps must begin at step 0, got {dict(periods)}")
        for first, period in periods.items():
            check(is_whole(first) and first >= 0, f"the first step of a period must be a whole number, got {first!r}")
            check(is_whole(period) and period >= 1, f"period must be a whole number of steps >= 1, got {period!r}")
        check(
            self.until is None or (is_whole(self.until) and self.until >= 0),
            f"until must be a step number or None, got {self.until!r}",
        )
        check(
            self.granularity in GRANULARITIES, f"granularity must be one of {GRANULARITIES}, got {self.granularity!r}"
        )
        if isinstance(self.distribution, Mapping):
            for pattern, sparsity in self.distribution.items():
                check(isinstance(pattern, str), f"distribution must map layer patterns to sparsities, got {pattern!r}")
                check_sparsity(sparsity)
        else:
            check(
                self.distribution in DISTRIBUTIONS,
                f"distribution must be one of {DISTRIBUTIONS} or {{pattern: sparsity}}, got {self.distribution!r}",
            )
        check(is_number(self.l1) and self.l1 >= 0, f"l1 must be a number >= 0, got {self.l1!r}")

    @property
    def regrows_in_place(self) -> bool:
        """Whether a layer gets back what it lost, so that it cannot lose more than it has free places."""
        return True

    @property
    def gradient_l1(self) -> float:
        """Strength of the L1 term that is added to the gradient."""
        return self.l1

    @property
    def gradient_memory(self) -> float | None:
        """How much of the running mean of dense gradients is kept each step, where growth goes by gradients.

        0: the gradient of the rewiring step alone. None: growth does not look at gradients.
        """
        return None

    def budget(self, num_weights: int) -> int:
        """How many of the sparse layers' weights are active, in the end."""
        return round((1 - self.sparsity) * num_weights)

    def is_due(self, step: int) -> bool:
        """Whether the network is rewired right after this step."""
        return self.rewires and is_due(step, self.period, self.until)

    def first_memory(self) -> Memory:
        """The numbers a method carries from one rewiring to the next."""
        return {}

    def how_many_go(self, tally: Tally, step: int) -> list[int]:
        """Units that each layer loses, for methods that can say so beforehand."""
        return [0] * len(tally.active)

    def which_go(self, stretch: Stretch, num_gone: Sequence[int], memory: Memory) -> Gone:
        """Positions of active units, ascending, and how many of them are in each layer."""
        return prune.smallest_of_each(stretch, num_gone)

    def how_many_come(self, tally: Tally, stretches: Sequence[Stretch], key: int) -> list[int]:
        """Units that each layer gets back."""
        return allot.in_place(tally)

    def which_come(self, stretch: Stretch, wanted: Sequence[int], key: int) -> Tensor:
        """Places of a stretch that become active."""
        return grow.at_random(stretch.chunk, wanted, stretch.free, stretch.active, key)

    def walk(self, signs: Tensor, noise: Tensor, rates: float | Tensor, step: int) -> Tensor:
        """What is added to each active weight after a step of the optimizer, for methods that walk."""
        raise NotImplementedError(f"{type(self).__name__} is a method that walks, but does not say how: define walk()")

    def diffusion(self, step: int) -> tuple[float, float] | None:
        """Temperature and drift of a step, where walking and rewiring are DeepR's, which a GPU can do all alone."""
        return None

    def next_memory(self, memory: Memory, tally: Tally) -> Memory:
        return memory


def check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def check_sparsity(sparsity: Any) -> None:
    if not is_number(sparsity) or not 0 <= sparsity < 1:
        percent = is_number(sparsity) and 1 < sparsity < 100
        hint = f"; did you mean {sparsity / 100:g}?" if percent else ""
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity!r}{hint}")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
