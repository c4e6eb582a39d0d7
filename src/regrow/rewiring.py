"""One rewiring: evidence -> prune -> allot -> grow. Decides everything, changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regrow import chance
from regrow.methods.method import Memory, Method
from regrow.row import Stretch, Tally
from regrow.rules import prune


@dataclass(frozen=True)
class Plan:
    """What goes and what comes, per chunk; how many, per layer; and what the method will remember."""

    gone: list[Tensor]
    come: list[Tensor]
    pruned: list[int]
    grown: list[int]
    memory: Memory


def plan(method: Method, stretches: Sequence[Stretch], tally: Tally, step: int, seed: int, memory: Memory) -> Plan:
    """Apply a method's rules to the row."""
    num_gone = method.how_many_go(tally, step)
    gone = [method.which_go(stretch, stretch.chunk.of(num_gone), memory) for stretch in stretches]
    gone, pruned = _settle(method, stretches, gone, tally)
    tally = replace(tally, pruned=tuple(pruned))
    grown = method.how_many_come(tally, stretches, chance.key(seed, step, len(pruned)))
    come = [
        method.which_come(stretch, stretch.chunk.of(grown), chance.key(seed, step))
        if any(stretch.chunk.of(grown))
        else torch.empty(0, dtype=torch.int64, device=stretch.chunk.device)
        for stretch in stretches
    ]
    return Plan(gone, come, pruned, grown, method.next_memory(memory, tally))


def _settle(
    method: Method, stretches: Sequence[Stretch], chosen: list[Tensor], tally: Tally
) -> tuple[list[Tensor], list[int]]:
    """Positions that really go, and how many per layer: no layer empties, and all that goes has a place to return."""
    limits = [active - 1 for active in tally.active]
    if method.regrows_in_place and method.keeps_budget:
        limits = [min(limit, free) for limit, free in zip(limits, tally.free, strict=True)]
    gone, pruned = [], []
    for stretch, positions in zip(stretches, chosen, strict=True):
        bounds = stretch.chunk.of(limits)
        counts = stretch.chunk.count_per_layer(positions)
        if any(count > bound for count, bound in zip(counts, bounds, strict=True)):
            flags = torch.isin(stretch.positions, positions)
            positions = stretch.flagged(prune.at_most(flags, stretch.magnitude, stretch.counts, bounds))
            counts = stretch.chunk.count_per_layer(positions)
        gone.append(positions)
        pruned += counts
    if not method.regrows_in_place:
        gone, pruned = _fit_into_room(stretches, gone, replace(tally, pruned=tuple(pruned)))
    return gone, pruned


def _fit_into_room(stretches: Sequence[Stretch], gone: list[Tensor], tally: Tally) -> tuple[list[Tensor], list[int]]:
    """Spare the largest where more weights would go than the network has free places for."""
    room = sum(free * size for free, size in zip(tally.free, tally.unit_sizes, strict=True))
    excess = tally.open_weights - room
    if excess <= 0:
        return gone, list(tally.pruned)
    magnitude = torch.cat(
        [s.values().index_select(0, some).abs().cpu() for s, some in zip(stretches, gone, strict=True)]
    )
    sizes = torch.tensor(tally.unit_sizes).repeat_interleave(torch.tensor(tally.pruned))
    largest_first = magnitude.argsort(descending=True, stable=True)
    freed_before = sizes[largest_first].cumsum(0) - sizes[largest_first]
    goes = torch.ones_like(magnitude, dtype=torch.bool)
    goes[largest_first[freed_before < excess]] = False
    kept = [
        some[flags.to(some.device)]
        for some, flags in zip(gone, torch.split(goes, [len(some) for some in gone]), strict=True)
    ]
    return kept, [n for s, some in zip(stretches, kept, strict=True) for n in s.chunk.count_per_layer(some)]
