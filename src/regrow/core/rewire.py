"""One rewiring: evidence -> prune -> allot -> grow. Decides everything, changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Stretch, Tally
from regrow.core.rules import prune
from regrow.methods.method import Gone, Memory, Method


@dataclass(frozen=True)
class Plan:
    """What goes and what comes, per chunk; how many, per layer; and what the method will remember."""

    gone: list[Tensor]
    come: list[Tensor]
    pruned: list[int]
    grown: list[int]
    memory: Memory


def plan(
    method: Method,
    stretches: Sequence[Stretch],
    tally: Tally,
    step: int,
    seed: int,
    memory: Memory,
    groups: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """Apply a method's rules to the row; `groups` of layers, if there are several, each keep what they hold."""
    groups = groups if groups is not None and len(groups) > 1 else None
    num_gone = method.how_many_go(tally, step)
    chosen = [method.which_go(stretch, stretch.chunk.of(num_gone), memory) for stretch in stretches]
    gone, tally = _settle(method, stretches, chosen, tally, groups)
    grown = _allot(method, stretches, tally, random.key(seed, step, len(tally.pruned)), groups)
    come = [
        method.which_come(stretch, stretch.chunk.of(grown), random.key(seed, step))
        if any(stretch.chunk.of(grown))
        else torch.empty(0, dtype=torch.int64, device=stretch.chunk.device)
        for stretch in stretches
    ]
    return Plan(gone, come, list(tally.pruned), grown, method.next_memory(memory, tally))


def _allot(
    method: Method, stretches: Sequence[Stretch], tally: Tally, key: int, groups: Sequence[Sequence[int]] | None
) -> list[int]:
    if groups is None:
        return method.how_many_come(tally, stretches, key)
    grown = [0] * len(tally.active)
    for number, group in enumerate(groups):
        shares = method.how_many_come(tally.of(group), stretches, random.key(key, number))
        for i, share in zip(group, shares, strict=True):
            grown[i] = share
    return grown


def _settle(
    method: Method,
    stretches: Sequence[Stretch],
    chosen: Sequence[Gone],
    tally: Tally,
    groups: Sequence[Sequence[int]] | None,
) -> tuple[list[Tensor], Tally]:
    """Positions that really go, and their tally: no layer empties, and all that goes has a place to return."""
    limits = [active - 1 for active in tally.active]
    if method.regrows_in_place and method.keeps_budget:
        limits = [min(limit, free) for limit, free in zip(limits, tally.free, strict=True)]
    gone: list[Tensor] = []
    pruned: list[int] = []
    for stretch, (positions, counts) in zip(stretches, chosen, strict=True):
        bounds = stretch.chunk.of(limits)
        if any(count > bound for count, bound in zip(counts, bounds, strict=True)):
            flags = torch.isin(stretch.positions, positions)
            positions = stretch.flagged(prune.at_most(flags, stretch.magnitude, stretch.counts, bounds))
            counts = [min(count, bound) for count, bound in zip(counts, bounds, strict=True)]
        gone.append(positions)
        pruned += counts
    tally = replace(tally, pruned=tuple(pruned))
    return (gone, tally) if method.regrows_in_place else _fit_into_room(stretches, gone, tally, groups)


def _fit_into_room(
    stretches: Sequence[Stretch], gone: list[Tensor], tally: Tally, groups: Sequence[Sequence[int]] | None
) -> tuple[list[Tensor], Tally]:
    """Spare the largest where more weights would go than the network, or a group of layers, has free places for."""
    parts = [(range(len(tally.active)), tally)] if groups is None else [(group, tally.of(group)) for group in groups]
    excesses = [part.open_weights - sum(map(mul, part.free, part.unit_sizes)) for _, part in parts]
    if max(excesses) <= 0:
        return gone, tally
    magnitude = torch.cat([s.magnitude_at(some).cpu() for s, some in zip(stretches, gone, strict=True)])
    layer_of = torch.arange(len(tally.pruned)).repeat_interleave(torch.tensor(tally.pruned))
    goes = torch.ones_like(magnitude, dtype=torch.bool)
    for (group, _), excess in zip(parts, excesses, strict=True):
        ours = torch.isin(layer_of, torch.tensor(group)).nonzero().flatten()
        largest_first = ours[magnitude[ours].argsort(descending=True, stable=True)]
        sizes = torch.tensor(tally.unit_sizes)[layer_of[largest_first]]
        goes[largest_first[sizes.cumsum(0) - sizes < excess]] = False
    kept = [
        some[flags.to(some.device)]
        for some, flags in zip(gone, torch.split(goes, [len(some) for some in gone]), strict=True)
    ]
    pruned = [n for s, some in zip(stretches, kept, strict=True) for n in s.chunk.count_per_layer(some)]
    return kept, replace(tally, pruned=tuple(pruned))
