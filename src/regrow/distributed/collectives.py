"""What ranks that share layers say to each other: the one place where it is sent, and counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup

T = TypeVar("T")


@dataclass
class Sent:
    """How often this process took part in a collective for a sparse network, and how many bytes it gave."""

    num_collectives: int = 0
    num_bytes: int = 0


SENT = Sent()


def all_reduce(tensor: Tensor, op: str, group: "ProcessGroup") -> None:
    SENT.num_collectives += 1
    SENT.num_bytes += tensor.nbytes
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group)


def attempt(act: Callable[[], T], otherwise: T) -> tuple[T, Exception | None]:
    """What a rank does before the others are told whether it could."""
    try:
        return act(), None
    except Exception as error:  # whatever it is, nobody may wait for this rank
        return otherwise, error


class Ranks:
    """The groups of ranks over which each layer is sharded, one for each dimension of its mesh that shards it.

    What they add up goes through one dimension after the other; all layers with a group in common go together, so that
    the number of collectives is that of the dimensions.
    """

    def __init__(self, groups: Sequence[Sequence["ProcessGroup"]], device: torch.device) -> None:
        self.device = device
        self._groups: dict[str, ProcessGroup] = {}
        self._layers: dict[str, list[int]] = {}
        for i, own in enumerate(groups):
            for group in own:
                self._groups[group.group_name] = group
                self._layers.setdefault(group.group_name, []).append(i)

    def add(self, rows: Sequence[Tensor], problem: Exception | None = None) -> Tensor:
        """The sum of each layer's whole numbers over its ranks; what went wrong on one of them is raised on all."""
        failed = torch.tensor([int(problem is not None)], dtype=rows[0].dtype, device=self.device)
        sums = torch.stack(self.reduce([torch.cat([row.to(self.device), failed]) for row in rows])).cpu()
        if bool(sums[:, -1].any()):
            self._raise_first(problem)
        return sums[:, :-1].long()

    def add_up(self, count: int) -> int:
        """The sum of a whole number over all ranks that share any layer."""
        total = torch.tensor([count], device=self.device)
        for group in self._groups.values():
            all_reduce(total, "SUM", group)
        return int(total)

    def agree(self, problem: Exception | None) -> None:
        """Raise what went wrong on any rank on all of them."""
        if self.add_up(int(problem is not None)):
            self._raise_first(problem)

    def reduce(self, pieces: Sequence[Tensor], op: str = "SUM") -> list[Tensor]:
        """Each layer's numbers, added up over its ranks or the largest of them."""
        pieces = list(pieces)
        for name, layers in self._layers.items():
            together = torch.cat([pieces[i] for i in layers])
            if len(together):
                all_reduce(together, op, self._groups[name])
            for i, piece in zip(layers, torch.split(together, [len(pieces[i]) for i in layers]), strict=True):
                pieces[i] = piece
        return pieces

    def _raise_first(self, problem: Exception | None) -> None:
        told = [problem]
        for group in self._groups.values():
            heard: list[list[Exception | None]] = [[] for _ in range(dist.get_world_size(group))]
            dist.all_gather_object(heard, told, group)
            told = [one for some in heard for one in some]
        raise next(filter(None, told))
