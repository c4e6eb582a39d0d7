"""One rewiring: evidence -> prune -> allot -> grow. Decides everything, changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import Quantities
from regrow.core.row import Tally

Memory = dict[str, float]


class Rules(Protocol):
    """What a rewiring asks a method: see `regrow.methods.Method`, where each slot is explained."""

    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def regrows_in_place(self) -> bool: ...
    def candidates(self, tally: Tally, step: int, key: int) -> Units | None: ...
    def prune_counts(self, tally: Tally, step: int) -> list[int]: ...
    def prune_units(self, evidence: Evidence, counts: Sequence[int], memory: Memory) -> Units: ...
    def grow_counts(self, tally: Tally, evidence: Evidence, key: int) -> list[int]: ...
    def grow_units(self, evidence: Evidence, counts: Sequence[int], key: int) -> Units: ...
    def next_memory(self, memory: Memory, tally: Tally) -> Memory: ...


@dataclass(frozen=True)
class Plan:
    """What goes, what comes, and what the method will remember."""

    pruned: Units
    grown: Units
    memory: Memory


def plan(rules: Rules, evidence: Evidence, seed: int, memory: Memory) -> Plan:
    """Apply a method's rules to the row."""
    tally, step = evidence.tally, evidence.step
    most = [active - 1 for active in tally.active]
    wanted = [min(max(count, 0), limit) for count, limit in zip(rules.prune_counts(tally, step), most, strict=True)]
    chosen = rules.prune_units(evidence, wanted, memory)
    named = candidates(rules, tally, step, seed)
    evidence.candidates = None if named is None else evidence.free_among(named)
    pruned = _settle(rules, evidence, chosen)
    tally = replace(tally, pruned=tuple(pruned.counts))
    counts = _allot(rules, evidence, tally, random.key(seed, step, len(tally.pruned)))
    grown = rules.grow_units(evidence, counts, random.key(seed, step)) if any(counts) else evidence.nothing
    _check_fits(rules, evidence, grown, tally)
    return Plan(pruned, grown, rules.next_memory(memory, tally))


def candidates(rules: Rules, tally: Tally, step: int, seed: int, are_wanted: bool = True) -> Units | None:
    """The places whose gradients a method wants, none of them while they are not wanted; None for all there are."""
    if "sampled_gradient" not in rules.needs or "free_gradient" in rules.needs:
        return None
    if not are_wanted:
        return Units(torch.empty(0, dtype=torch.int64), [0] * len(tally.active))
    return rules.candidates(tally, step, random.key(seed, step))


def _check_fits(rules: Rules, evidence: Evidence, grown: Units, tally: Tally) -> None:
    """Refuse a growth that is told wrongly or beyond the budget; other people's rules may return anything."""
    name, num_weights = type(rules).__name__, tally.weights_in(grown.counts)
    if len(grown.positions) != sum(evidence.counts_here(grown)) or len(grown.counts) != len(tally.active):
        raise ValueError(f"{name} grows {len(grown.positions)} units and counts {list(grown.counts)}")
    if any(left + come < 1 for left, come in zip(tally.survivors, grown.counts, strict=True)):
        raise ValueError(f"{name} leaves a layer without a weight")
    if num_weights > tally.open_weights:
        raise ValueError(f"{name} grows {num_weights:,} weights where its budget has room for {tally.open_weights:,}")


def _allot(rules: Rules, evidence: Evidence, tally: Tally, key: int) -> list[int]:
    if evidence.groups is None:
        return rules.grow_counts(tally, evidence, key)
    grown = [0] * len(tally.active)
    for number, group in enumerate(evidence.groups):
        shares = rules.grow_counts(tally.of(group), evidence.of(group), random.key(key, number))
        for i, share in zip(group, shares, strict=True):
            grown[i] = share
    return grown


def _settle(rules: Rules, evidence: Evidence, chosen: Units) -> Units:
    """What really goes: no layer empties, and all that goes has a place to return.

    What comes in a dense step may replace a whole layer; there the growth is looked at.
    """
    tally = evidence.tally
    if "dense_step" in rules.needs:
        return chosen
    limits = [active - 1 for active in tally.active]
    if rules.regrows_in_place and "changing_budget" not in rules.needs:
        limits = list(map(min, limits, tally.free if evidence.candidates is None else evidence.candidates.counts))
    if any(count > limit for count, limit in zip(chosen.counts, limits, strict=True)):
        chosen = _smallest_among(evidence, list(map(min, chosen.counts, limits)), chosen.positions)
    return chosen if rules.regrows_in_place else _fit_into_room(evidence, chosen)


def _smallest_among(evidence: Evidence, counts: Sequence[int], positions: Tensor) -> Units:
    def magnitude(units: Quantities) -> Tensor:
        is_among = torch.isin(units.position, positions.to(units.position.device))
        return units.weight.abs().masked_fill_(~is_among, torch.inf)

    return evidence.smallest(counts, magnitude)


def _fit_into_room(evidence: Evidence, chosen: Units) -> Units:
    """Spare the largest where more weights would go than the network, or a group of layers, has free places for."""
    tally = replace(evidence.tally, pruned=tuple(chosen.counts))
    groups = evidence.groups or [range(len(tally.active))]
    parts = [tally] if evidence.groups is None else [tally.of(group) for group in groups]
    excesses = [part.open_weights - part.weights_in(part.free) for part in parts]
    if max(excesses) <= 0:
        return chosen
    return evidence.spare_largest(chosen, groups, excesses)
