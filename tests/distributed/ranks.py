"""Processes of a job on this machine, forked from one that has everything imported, as that is what takes time."""

import gc
import os
from collections.abc import Callable
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PRELOADED = ["regrow", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"]


def on_ranks(num_ranks: int, act: Callable[..., Any], folder: Path, *given: Any) -> list[Any]:
    """What a function returns on each rank of a job."""
    set_forkserver_preload(PRELOADED)
    torch.multiprocessing.start_processes(
        _run, (num_ranks, act, str(folder), given), nprocs=num_ranks, start_method="forkserver"
    )
    return [torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(num_ranks)]


def _run(rank: int, num_ranks: int, act: Callable[..., Any], folder: str, given: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks)
    torch.save(act(*given), f"{folder}/rank{rank}")
    gc.collect()  # a DDP model that Python is left to clear away at its end makes torch 2.13 abort now and then
    dist.destroy_process_group()
