"""Free places at random over shards: each rank goes through today's draws and notes the turns of places that it has."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.selections import ascending, bound_for, draws_for, positions_of
from regrow.distributed.collectives import Ranks
from regrow.distributed.search import Candidates, Order, first_of
from regrow.distributed.shard import Shard, ShardedChunk

_TILE = 1 << 20

Drawn = tuple[Tensor, Tensor]
"""Free units of a layer, ascending, and numbers of which the smallest win."""
Draw = Callable[[Shard, Tensor, int, int, int, float], Drawn]
"""Of the free units here, out of so many in all, for so many that are wanted: by a key, with some slack."""


def draw_free(
    chunks: Sequence[ShardedChunk],
    actives: Sequence[Tensor],
    wanted: Sequence[int],
    free: Sequence[int],
    key: int,
    ranks: Ranks,
) -> list[Tensor]:
    """What `core.selections.draw_free` takes of the whole layers, as far as it is here: ascending places."""
    many = [n if 8 * n > left else 0 for n, left in zip(wanted, free, strict=True)]
    few = [n - own for n, own in zip(wanted, many, strict=True)]
    sizes = [layer.whole.num_units for chunk in chunks for layer in chunk.layers]
    found = [[torch.empty(0, dtype=torch.int64, device=chunk.device)] for chunk in chunks]
    for counts, draw, width in ((many, _smallest_numbers, 64), (few, _first_turns, None)):
        slack = 1.0
        while any(counts):
            drawn = [
                _of_chunk(chunk, active, partial(_draw, draw, counts, free, key, slack))
                for chunk, active in zip(chunks, actives, strict=True)
            ]
            num_drawn = [torch.tensor([n]) for own in drawn for n in own.chunk.count(_places(own))]
            totals = ranks.add(num_drawn).flatten().tolist()
            if all(total >= count for total, count in zip(totals, counts, strict=True)):
                order = Order(width or _most_draws(sizes, free, counts, slack).bit_length())
                for own, places in zip(found, first_of(drawn, counts, ranks, order), strict=True):
                    own.append(places)
                break
            slack *= 2
    return [ascending(torch.cat(own)) for own in found]


def _most_draws(sizes: Sequence[int], free: Sequence[int], wanted: Sequence[int], slack: float) -> int:
    return max(draws_for(size, left, n, slack) for size, left, n in zip(sizes, free, wanted, strict=True) if n)


def _places(own: Candidates) -> Tensor:
    assert own.places is not None
    return own.places


def _draw(
    draw: Draw, wanted: Sequence[int], free: Sequence[int], key: int, slack: float, i: int, at: tuple[Shard, Tensor]
) -> Drawn:
    layer, active = at
    if not wanted[i]:
        nothing = torch.empty(0, dtype=torch.int64, device=active.device)
        return nothing, nothing
    return draw(layer, active, wanted[i], free[i], random.key(key, i), slack)


def _of_chunk(chunk: ShardedChunk, active: Tensor, draw: Callable[[int, tuple[Shard, Tensor]], Drawn]) -> Candidates:
    layers = zip(chunk.layers, chunk.split(active), strict=True)
    drawn = [draw(i, own) for i, own in enumerate(layers, chunk.first)]
    places = torch.cat([units + offset for (units, _), offset in zip(drawn, chunk.offsets, strict=False)])
    numbers = torch.cat([own for _, own in drawn])
    return Candidates(chunk, lambda: numbers, places)


def _smallest_numbers(layer: Shard, active: Tensor, wanted: int, free: int, key: int, slack: float) -> Drawn:
    """Every place has a number; nearly always those up to a bound suffice."""
    bound = bound_for(wanted, free, slack)
    found = [(active.new_empty(0, dtype=torch.int64),) * 2]
    for begin, end in _tiles(layer.num_units):
        units = positions_of(~active[begin:end]) + begin
        numbers = random.bits(key, layer.outward(units))
        low = positions_of(numbers <= bound)
        found.append((units[low], numbers[low]))
    units, numbers = (torch.cat(parts) for parts in zip(*found, strict=True))
    return units, numbers


def _first_turns(layer: Shard, active: Tensor, wanted: int, free: int, key: int, slack: float) -> Drawn:
    """The turn in which a place is drawn first."""
    found = [(active.new_empty(0, dtype=torch.int64),) * 2]
    for begin, end in _tiles(draws_for(layer.whole.num_units, free, wanted, slack)):
        turns = torch.arange(begin, end, device=active.device)
        units, are_here = layer.inward(random.bits(key, turns).remainder_(layer.whole.num_units))
        turns, units = turns[are_here], units[are_here]
        is_free = ~active[units]
        found.append((units[is_free], turns[is_free]))
    units, turns = (torch.cat(parts) for parts in zip(*found, strict=True))
    units, order = units.sort(stable=True)
    is_first = torch.ones_like(units, dtype=torch.bool)
    torch.ne(units[1:], units[:-1], out=is_first[1:])
    return units[is_first], turns[order][is_first]


def _tiles(length: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + _TILE, length)) for begin in range(0, length, _TILE))
