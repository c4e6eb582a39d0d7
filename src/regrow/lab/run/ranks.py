"""Processes that train one run together, as torchrun starts them: what is asked and told among them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from regrow.lab.run.folder import RunFolder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train a run together; one that is alone asks nobody.

    `local`: its number on its machine. `shards`: each holds a part of every weight, and not all of them.
    """

    rank: int = 0
    count: int = 1
    local: int = 0
    is_joined: bool = False
    shards: bool = False

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def part(self) -> dict[str, int]:
        """Which part of each batch is for this one, as data sets are told."""
        return {"rank": self.rank, "num_ranks": self.count} if self.is_joined else {}

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result has to tell of them."""
        return {"ranks": self.count} | ({"sharded": True} if self.shards else {})

    def folder(self, path: Path) -> RunFolder:
        """The folder of a run, into which only the first writes."""
        return RunFolder(path) if self.is_first else _ReadOnly(path)

    def together(self, act: Callable[[], T]) -> T:
        """Have all act; where one cannot, all end, so that nobody waits for it, and the first of them says why."""
        if not self.is_joined:
            return act()
        done: list[T] = []
        failed: Exception | None = None
        try:
            done.append(act())
        except Exception as error:
            failed = error
        sentences: list[str | None] = [None] * self.count
        dist.all_gather_object(sentences, None if failed is None else str(failed))
        for rank, sentence in enumerate(sentences):
            if sentence is not None:
                if not self.is_first:
                    raise SystemExit(1) from failed
                raise failed or RuntimeError(f"rank {rank}: {sentence}")
        return done[0]

    def told(self, act: Callable[[], T]) -> T:
        """What the first finds."""
        found = [self.together(lambda: act() if self.is_first else None)]
        if self.is_joined:
            dist.broadcast_object_list(found, src=0)
        return cast(T, found[0])

    def in_turn(self, act: Callable[[], T]) -> T:
        """Have one process of each machine act before the others do: what it fetches, they find."""
        self.together(lambda: None if self.local else act())
        return self.together(act)

    def any(self, *flags: bool) -> Sequence[bool]:
        """Which flags are raised anywhere: all stop and save at the same step."""
        if not self.is_joined:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8)  # not on the device, for which nobody is to wait
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised.tolist()]

    def everyones(self, numbers: Sequence[Any]) -> Tensor:
        """A row of numbers from each."""
        own = torch.tensor([[float(number) for number in numbers]], dtype=torch.float64)
        if not self.is_joined:
            return own
        rows = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(rows, own)
        return torch.cat(rows)

    def share_buffers(self, model: nn.Module) -> None:
        """Give all the running statistics of the first, which are those that are saved."""
        if self.is_joined:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def check_batch_size(self, batch_size: int) -> None:
        if batch_size % self.count:
            raise ValueError(
                f"batch_size {batch_size} cannot be shared equally among {self.count} processes; choose a multiple of "
                f"{self.count}, or another number of processes"
            )


ALONE = Ranks()


class _ReadOnly(RunFolder):
    """A folder as it is for those who leave the writing to another process."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def write(self, name: str, content: bytes | memoryview) -> None:
        pass

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        pass

    def remove(self, name: str) -> None:
        pass


def are_started_together() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def check_alone(what: str) -> None:
    """Refuse to be one of several processes that torchrun starts."""
    if are_started_together():
        raise ValueError(f"{what} is one process, which starts others itself; leave torchrun to `regrow train`")


def meet(device: str, compiles: bool | None, *, shards: bool) -> tuple[Ranks, str]:
    """The other processes if torchrun started any, and the device that is this one's."""
    if not are_started_together():
        if shards:
            raise ValueError(
                "--shard is for several processes: torchrun --nproc-per-node 2 -m regrow train --shard, and the rest"
            )
        return ALONE, device
    if compiles:
        raise ValueError("--compile is for one process; leave it out under torchrun")
    rank, count, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    is_on_gpu = device.startswith("cuda")
    if is_on_gpu:
        device = _own_gpu(device, local)
    backend = "cpu:gloo,cuda:nccl" if is_on_gpu else "gloo"
    dist.init_process_group(backend, store=_store_of_this_attempt(), rank=rank, world_size=count)
    return Ranks(rank, count, local, is_joined=True, shards=shards), device


def _store_of_this_attempt() -> "Store | None":
    """Where torchrun starts processes anew after a failure, those before have left their addresses in its store.

    On one machine its count of attempts tells them apart; on several every machine counts its own.
    """
    is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not is_shared or os.environ["GROUP_WORLD_SIZE"] != "1":
        return None
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


def _own_gpu(device: str, local: int) -> str:
    there = torch.cuda.device_count()
    if device != "cuda" or local >= there:
        raise ValueError(
            f"under torchrun each process has a GPU of its own, and there are {there} here; say --device cuda with "
            f"--nproc-per-node {there} at the most, or --device cpu"
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def leave() -> None:
    """Say goodbye to the others, or torch would complain."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
