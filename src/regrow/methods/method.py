"""What every method is made of: common fields, and the slots a rewiring calls."""

import sys
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import Signature, signature
from math import isfinite
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from torch import Tensor

from regrow.core.densities import DISTRIBUTIONS, Distribution
from regrow.core.evidence import Evidence, Units
from regrow.core.names import suggest
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.schedules import first_step
from regrow.core.units import Granularity, Layer, granularity_of
from regrow.methods.effects.dense_step import DenseStep
from regrow.methods.effects.effect import Effect
from regrow.methods.effects.l1 import L1
from regrow.methods.effects.mean_gradient import MeanGradient
from regrow.methods.effects.signs import Signs

METHODS: dict[str, "type[Method]"] = {}
NEEDS = {
    "gradient": "the gradient of active weights",
    "free_gradient": "the gradient of free places",
    "sampled_gradient": "the gradient of places named before the backward pass",
    "mean_gradient": "a running mean of the gradient of every place",
    "sign": "a fixed sign for every place",
    "changing_budget": "room for a number of active weights that changes",
    "dense_step": "gradients and optimizer state of every place",
}
"""What a method may ask of a storage, and what that is."""
_FILES: dict[str, str] = {}
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
            masks = (
                "" if "changing_budget" in cls.needs else "; beside start=masks, which define the budget, any will do"
            )
            raise TypeError(f"{cls.__name__} needs a sparsity, e.g. {cls.__name__}(sparsity=0.9){masks}")
        plain_init(self, **given)

    made.__init__ = __init__  # type: ignore[method-assign]
    made.__signature__ = _signature(plain_init)  # type: ignore[attr-defined]
    _check_needs(cls)
    _register(made, sys._getframe(1).f_code.co_filename)
    return cast(AnyMethod, made)


def _signature(init: Any) -> Signature:
    """That of a method's fields, for help and completion."""
    plain = signature(init)
    return plain.replace(parameters=[own for name, own in plain.parameters.items() if name != "self"])


def _register(cls: "type[Method]", file: str) -> None:
    name = cls.__name__
    taken_by = METHODS.get(name)
    is_again = taken_by is not None and taken_by.__module__ == cls.__module__ == "__main__"  # in a script or notebook
    if taken_by is not None and not is_again and _FILES.get(name, file) != file:
        raise ValueError(f"there is a method {name} already, in {_FILES[name]}; give the one in {file} another name")
    _FILES[name] = file
    METHODS[name] = cls


def _check_needs(cls: "type[Method]") -> None:
    cls.needs = frozenset(cls.needs)
    for need in cls.needs:
        if need not in NEEDS:
            raise ValueError(f"{cls.__name__} needs {need!r}, which nothing offers; {suggest(need, NEEDS)}")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The fields all methods share.

    `sparsity`: the fraction of positions that are inactive, over all sparse layers together. `period`: steps between
    rewirings, or {first step: period}. `until`: the step after which there are no more. `granularity`: what is pruned
    and grown as one: "weight", "kernel", "channel", or blocks such as "4x4". `distribution`: how the budget is shared
    among layers at the start: "uniform", "er", "erk" or {layer pattern: sparsity}. `l1`: strength of the pull of active
    weights towards 0.
    """

    sparsity: float
    period: int | Mapping[int, int] = 100
    until: int | None = None
    granularity: Granularity = "weight"
    distribution: Distribution = "uniform"
    l1: float = 0.0

    needs: ClassVar[frozenset[str]] = frozenset()
    """What it must be given beside the weights: see `NEEDS`."""
    rewires: ClassVar[bool] = True
    rewires_every_step: ClassVar[bool] = False
    """Whether that is its habit, so that its history keeps totals rather than a record of each rewiring."""
    falls: ClassVar[bool] = False
    """Whether it moves less the nearer `until` is, and as much to the end where there is none."""
    until_only_stops: ClassVar[bool] = False
    """Whether the network is the same up to `until`, whenever that is."""
    storage: ClassVar[str | None] = None
    """The storage that the method brings, where it is a way of storing weights."""

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
        object.__setattr__(self, "granularity", granularity_of(self.granularity))
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
    def gradient_decay(self) -> float:
        """How much of the running mean of gradients is kept in each step, for a method that needs "mean_gradient"."""
        return 0.9

    def effects(self) -> list[Effect]:
        """What happens in every step beside masking."""
        made: list[Effect] = [L1(self.l1)] if self.l1 else []
        made += [MeanGradient(self.gradient_decay)] if "mean_gradient" in self.needs else []
        made += [Signs()] if "sign" in self.needs else []
        return made + ([DenseStep(self.is_due)] if "dense_step" in self.needs else [])

    # When, and how many weights

    def is_due(self, step: int) -> bool:
        """Whether the network is rewired right after step number `step`; steps count from 1.

        A new period begins with a rewiring.
        """
        if not self.rewires or step < 1 or (self.until is not None and step > self.until):
            return False
        if isinstance(self.period, Mapping):
            first = first_step(self.period, step)
            return (step - first) % self.period[first] == 0
        return step % self.period == 0

    def budget(self, num_weights: int) -> int:
        """How many of the sparse layers' weights are active in the end."""
        return round((1 - self.sparsity) * num_weights)

    def budget_at(self, step: int, tally: Tally) -> int:
        """How many are active after a step; asked before the first one (0) and at rewirings.

        A method for which that changes needs "changing_budget". `tally` is as it was until now; before the first step
        all units are active, and the budget is all weights.
        """
        return tally.target

    def check_layers(self, layers: Sequence[Layer], tally: Tally) -> None:  # noqa: B027 - most work with any
        """Refuse a network that the method cannot work with; asked at attach, before anything is changed."""

    # Prune

    def prune_counts(self, tally: Tally, step: int) -> list[int]:
        """Units that each layer loses, for methods that can say so beforehand."""
        return [0] * len(tally.active)

    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units:
        """Which active units go; `counts` are those of `prune_counts`. By default the smallest."""
        return evidence.smallest(counts)

    # Allot

    @property
    def regrows_in_place(self) -> bool:
        """Whether a layer gets back what it lost, so that it cannot lose more than it has free places."""
        return True

    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]:
        """Units that each layer gets back. By default as many as it lost."""
        return list(tally.pruned)

    # Grow

    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units:
        """Which free places become active. By default at random."""
        return evidence.draw_free(counts, key)

    def growth_score(self, gradient: Tensor) -> Tensor:
        """What free places are compared by, for a method that needs "free_gradient".

        Storages that keep no dense gradient go by it in the backward pass, and keep the best.
        """
        return gradient.abs()

    def candidates(self, tally: Tally, step: int, key: int) -> Units | None:
        """The places among which growth looks, for a method that needs "sampled_gradient"; None for all.

        Those that are free are `evidence.candidates` when it grows.
        """
        return None

    # What is carried from one rewiring to the next

    def first_memory(self) -> Memory:
        """Numbers, by name; one called "threshold" is shown in the history."""
        return {}

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


def check_fraction(name: str, value: Any) -> None:
    check(is_number(value) and 0 <= value <= 1, f"{name} must be in [0, 1], got {value!r}")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
