"""What regrow costs a network that FSDP2 spreads over ranks: bytes of a rewiring, time of a step and of a rewiring.

    python -m benchmarks.shards [--device cpu --ranks 2] [--width 1024] [--depth 4]

With `--device cpu` ranks are processes on this machine, which speak through gloo, and times are those that the first
spends on its core; with `--device cuda` there is one, NCCL, and the clock. Steps with and without regrow take turns in
blocks, and medians count; times of a rewiring are those of steps that rewire less those of steps that do not. Bytes are
what a rank gives to collectives, beside the dense weights in float32.
"""

import argparse
import os
from collections.abc import Callable
from statistics import median
from tempfile import mkdtemp
from time import process_time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import regrow
from benchmarks.measure import seconds, table
from regrow.distributed.collectives import SENT

PERIOD = 5
OFTEN = {"sparsity": 0.9, "period": PERIOD}
METHODS: dict[str, Callable[[], regrow.Method]] = {
    "Static": lambda: regrow.Static(sparsity=0.9),
    "DSR": lambda: regrow.DSR(**OFTEN),
    "SET": lambda: regrow.SET(**OFTEN),
    "RigL": lambda: regrow.RigL(**OFTEN, until=10**6),
    "SNFS": lambda: regrow.SNFS(**OFTEN, until=10**6),
    "MEST": lambda: regrow.MEST(**OFTEN, until=10**6),
    "GraNet": lambda: regrow.GraNet(**OFTEN, until=10**6),
    "GSE": lambda: regrow.GSE(**OFTEN, until=10**6),
    "Gradual": lambda: regrow.Gradual(**OFTEN, until=200),
    "DeepR": lambda: regrow.DeepR(sparsity=0.9),
}


class Side:
    """A network in training, with a method or without."""

    def __init__(self, method: regrow.Method | None, width: int, depth: int, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers).to(device)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in layers[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(64, width, device=device)
        self.sparse = None if method is None else regrow.attach(self.model, self.optimizer, method)

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def to_the_last_before_a_rewiring(self) -> None:
        while self.sparse is not None and (self.sparse.num_steps + 1) % PERIOD:
            self.step()


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Of a core, which is shared with the other rank, what is spent on it."""
    if device.type == "cuda":
        return 1000 * seconds(work, device)
    begin = process_time()
    work()
    return 1000 * (process_time() - begin)


def measure(name: str, width: int, depth: int, device: torch.device, repeats: int) -> list[str]:
    """A row of the table."""
    plain, side = Side(None, width, depth, device), Side(METHODS[name](), width, depth, device)
    assert side.sparse is not None
    for _ in range(3):
        plain.step(), side.step()
    num_weights = sum(layer.active / layer.density for layer in side.sparse.layers)
    rewires_at_times = side.sparse.method.rewires and not side.sparse.method.rewires_every_step

    def skip_rewirings() -> None:
        while rewires_at_times and (side.sparse.num_steps + 1) % PERIOD == 0:
            side.step()

    without, ours = [], []
    for _ in range(repeats):
        skip_rewirings()
        without.append(milliseconds(plain.step, device))
        ours.append(milliseconds(side.step, device))
    rewiring, sent = [], []
    for _ in range(max(repeats // 5, 3)):
        side.to_the_last_before_a_rewiring()
        before = SENT.num_collectives, SENT.num_bytes
        rewiring.append(milliseconds(side.step, device))
        sent.append((SENT.num_bytes - before[1], SENT.num_collectives - before[0]))
    most, calls = max(sent)
    return [
        name,
        f"{median(without):.1f}",
        f"{median(ours) - median(without):+.1f}",
        f"{median(rewiring) - median(ours):.1f}" if rewires_at_times else "in each step" if sent[0][1] else "none",
        str(calls),
        f"{most / 1024:.1f}",
        f"{100 * most / (4 * num_weights):.2f} %",
    ]


def run(rank: int, arguments: argparse.Namespace, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1"} | ({"GLOO_SOCKET_IFNAME": "lo"} if arguments.device == "cpu" else {})
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=arguments.ranks)
    rows = [measure(name, arguments.width, arguments.depth, device, arguments.repeats) for name in arguments.methods]
    if rank == 0:
        head = ["method", "step, ms", "regrow, ms", "a rewiring, ms", "collectives", "KiB", "of dense weights"]
        print(f"{arguments.ranks} ranks, {arguments.depth} layers of {arguments.width} x {arguments.width}, {backend}")
        print(table([head, *rows]))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", type=int, default=None, help="processes; of a GPU there is one")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    arguments = parser.parse_args()
    arguments.ranks = arguments.ranks or (2 if arguments.device == "cpu" else 1)
    torch.multiprocessing.spawn(run, (arguments, mkdtemp()), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
