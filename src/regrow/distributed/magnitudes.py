"""Mean magnitudes of coarse units over shards: a unit that is cut is added up by all who have a part of it."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from regrow.core.magnitudes import mean_of, scale_of, summands
from regrow.core.units import wide
from regrow.distributed.collectives import Ranks
from regrow.distributed.shard import Shard, over_grid


class CutUnits:
    """Which units of some layers lie on several ranks, and what these say of them: a number per unit."""

    def __init__(self, shards: Sequence[Shard], ranks: Ranks) -> None:
        self._shards, self._ranks = shards, ranks

    def magnitudes(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What `Layer.flatten` makes of whole tensors, of the units here."""
        parts = [own[:0] if layer.is_fine else own.abs().double() for layer, own in self._with(tensors)]
        scales = list(map(scale_of, self._complete(self._gather(parts, "amax"), "MAX")))
        addends = [
            part if layer.is_fine else summands(part, layer.for_every_weight(scale), layer.unit_size)
            for (layer, part), scale in zip(self._with(parts), scales, strict=True)
        ]
        totals = self._complete(self._gather(addends, "sum"), "SUM")
        return [
            layer.flatten(own) if layer.is_fine else mean_of(total, scale, layer.unit_size).to(wide(own).dtype)
            for (layer, own), total, scale in zip(self._with(tensors), totals, scales, strict=True)
        ]

    def _gather(self, parts: Sequence[Tensor], how: str) -> list[Tensor]:
        nothing = torch.empty(0, dtype=torch.float64, device=self._ranks.device)
        return [nothing if layer.is_fine else layer.gather(part, how) for layer, part in self._with(parts)]

    def _complete(self, numbers: Sequence[Tensor], op: str) -> list[Tensor]:
        """Numbers of all units here, where those of cut ones, none negative, were of the part here."""
        slots = [own.to(self._ranks.device) for _, own in self._slots]
        sent = [own.new_zeros(num_cut) for own, (num_cut, _) in zip(numbers, self._slots, strict=True)]
        for to, own, at in zip(sent, numbers, slots, strict=True):
            to[at[at >= 0]] = own[at >= 0]
        heard = self._ranks.reduce(sent, op)
        return [
            torch.where(at >= 0, every[at], own) if len(every) else own
            for every, own, at in zip(heard, numbers, slots, strict=True)
        ]

    def _with(self, tensors: Sequence[Tensor]) -> list[tuple[Shard, Tensor]]:
        return list(zip(self._shards, tensors, strict=True))

    @cached_property
    def _slots(self) -> list[tuple[int, Tensor]]:
        """Of each layer how many units are cut, anywhere, and the number among these of each one here, or -1."""
        told = self._ranks.reduce([own.incomplete().to(self._ranks.device) for own in self._shards], "MAX")
        made = []
        for layer, flags in zip(self._shards, told, strict=True):
            numbers = torch.empty(0, dtype=torch.int64)
            num_cut = 0
            if not layer.is_fine:
                is_cut = ~over_grid([own == 0 for own in torch.split(flags.cpu(), list(layer.whole.grid))])
                num_cut = int(is_cut.sum())
                numbers = torch.where(is_cut, is_cut.cumsum(0) - 1, -1)[layer.outward(torch.arange(layer.num_units))]
            made.append((num_cut, numbers))
        return made
