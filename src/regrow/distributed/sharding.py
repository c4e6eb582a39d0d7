"""How the layers of a network are spread over ranks, and what is asked of all ranks about them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from regrow.core import random
from regrow.core.evidence import MaskedPart
from regrow.core.first_topology import check_start
from regrow.core.row import Tally, join
from regrow.core.units import Layer
from regrow.distributed.collectives import Ranks, attempt
from regrow.distributed.draws import draw_free
from regrow.distributed.dtensor import all_groups_of, groups_of, indices_here, is_sharded, local
from regrow.distributed.evidence import ShardedEvidence
from regrow.distributed.magnitudes import CutUnits
from regrow.distributed.search import Candidates, first_of
from regrow.distributed.shard import Shard, ShardedChunk, cut_shards


def is_first_of(tensors: Iterable[Tensor]) -> bool:
    """Whether this rank is the first of all that have parts of some tensors; alone it is."""
    return all(dist.get_rank(group) == 0 for own in tensors for group in all_groups_of(own))


def on_first_of(tensors: Iterable[Tensor], act: Callable[[], None]) -> None:
    """Let that rank do something, and all others wait for it; what goes wrong is raised on all."""
    if (ranks := _ranks_of(tensors)) is None:
        act()
        return
    ranks.agree(attempt(act, None)[1] if is_first_of(tensors) else None)


def is_on_any_of(tensors: Iterable[Tensor], is_so: bool) -> bool:
    """Whether something is so on any rank that has a part of some tensors."""
    ranks = _ranks_of(tensors)
    return is_so if ranks is None else ranks.add_up(int(is_so)) > 0


def _ranks_of(tensors: Iterable[Tensor]) -> Ranks | None:
    spread = [own for own in tensors if is_sharded(own)]
    return Ranks([all_groups_of(own) for own in spread], local(spread[0]).device) if spread else None


class Sharding:
    """The shards of some layers, and the ranks that have the others."""

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Tensor]) -> None:
        pairs = list(zip(layers, parameters, strict=True))
        self.shards = [
            Shard(layer.name, tuple(local(own).shape), layer.unit_shape, layer.unit_dims, layer, indices_here(own))
            for layer, own in pairs
        ]
        self.ranks = Ranks([groups_of(own) for own in parameters], torch.device("cpu"))
        self.is_coarse = not all(layer.is_fine for layer in layers)
        self._parameters = parameters
        self._cut = CutUnits(self.shards, self.ranks)
        self._flat: dict[str, list[Tensor]] = {}
        self.chunks: tuple[ShardedChunk, ...] = ()

    @classmethod
    def of(cls, layers: Sequence[Layer], parameters: Sequence[Tensor]) -> "Sharding | None":
        """None where no rank has but a part of anything."""
        return cls(layers, parameters) if any(map(is_sharded, parameters)) else None

    def cut(self, devices: Sequence[torch.device], limit: int | None) -> tuple[ShardedChunk, ...]:
        """Chunks of what is here."""
        self.ranks.device = next(
            device for device, own in zip(devices, self._parameters, strict=True) if is_sharded(own)
        )
        self.chunks = cut_shards(self.shards, devices, limit)
        return self.chunks

    def random_places(self, counts: Sequence[int], seed: int) -> list[Tensor]:
        """What `core.first_topology.random_places` gives for whole layers, as far as it is here."""
        nothing = [torch.zeros(chunk.num_units, dtype=torch.bool, device=chunk.device) for chunk in self.chunks]
        sizes = [layer.whole.num_units for layer in self.shards]
        return draw_free(self.chunks, nothing, counts, sizes, random.key(seed, 0), self.ranks)

    def largest_places(self, weights: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """The `counts` largest units of each whole layer, as far as they are here."""

        def lowness(chunk: ShardedChunk) -> Tensor:
            low = join(self.flatten("weight", weights, chunk.own)).abs().neg()
            check_start(low, chunk)
            return low

        self._flat.clear()
        return first_of([Candidates(chunk, partial(lowness, chunk)) for chunk in self.chunks], counts, self.ranks)

    def count(self, units: Sequence[Tensor]) -> list[int]:
        """How many are flagged of the units of each whole layer."""
        flags = [
            own if layer.counted is None else own & layer.counted.to(own.device)
            for layer, own in zip(self.shards, units, strict=True)
        ]
        return self.total([int(own.count_nonzero()) for own in flags])

    def total(self, counts: Sequence[int]) -> list[int]:
        """The sum of numbers of each layer over its ranks."""
        found: list[int] = self.ranks.add([torch.tensor([n]) for n in counts]).flatten().tolist()
        return found

    def flatten(self, name: str, tensors: Sequence[Tensor], layers: slice) -> list[Tensor]:
        """A quantity of the units here of some layers; that of coarse ones is kept until it is forgotten."""
        if not self.is_coarse:
            return [layer.flatten(own) for layer, own in zip(self.shards[layers], tensors[layers], strict=True)]
        if name not in self._flat:
            self._flat[name] = self._cut.magnitudes(tensors)
        return self._flat[name][layers]

    def evidence(self, parts: Sequence[MaskedPart], tally: Tally, step: int) -> ShardedEvidence:
        self._flat.clear()
        return ShardedEvidence(parts, tally, step, self.ranks)
