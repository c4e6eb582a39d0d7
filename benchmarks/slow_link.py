"""What packed storage saves on a slow link: bytes and time of a step of DistributedDataParallel, dense, masked, packed.

    python -m benchmarks.slow_link [--rates 100 1000 0] [--sparsities 0.9 0.99] [--widths 784 4096 4096 10]

Two ranks (gloo, one thread each) train a multilayer perceptron, each in a network namespace of its own. The link
between them is limited to so many Mbit/s in each direction (0 for no limit) and adds no delay; that the limit holds is
measured first, by an all-reduce. All sides are in the same two processes and take turns after two steps that warm up;
medians count. `gradients` is what DistributedDataParallel has to average; `sent` is what a rank puts on the link in a
step, by the counter of its interface at the first rate: on a slow link with all headers and acknowledgements, while a
fast one takes whole buffers and counts few headers. `x` is how many times less that is than dense, or how many times as
fast. No rewiring is due in these steps; it would send nothing. Needs root on Linux, and iproute2.
"""

import argparse
import os
import sys
import warnings
from datetime import timedelta
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import regrow
from benchmarks.link import ADDRESSES, ENDS, join, limit, linked, sent_bytes, wait_for
from benchmarks.measure import seconds, table

CPU = torch.device("cpu")
NEVER = 10**9
Side = tuple[str, float]  # a name or a storage, and a sparsity


class Training:
    """A network on both ranks, each with a random batch of its own."""

    def __init__(self, side: Side, widths: list[int], batch: int) -> None:
        torch.manual_seed(0)
        name, sparsity = side
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if sparsity:
            method = regrow.DSR(sparsity=sparsity, period=NEVER)
            regrow.attach(model, self.optimizer, method, storage="packed" if name == "packed" else "dense")
        self.model = DistributedDataParallel(model)
        self.gradient_bytes = sum(parameter.nbytes for parameter in model.parameters())
        torch.manual_seed(dist.get_rank())
        self.images, self.labels = torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,))

    def step(self) -> None:
        cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measured_rate(rank: int, megabits: int) -> float:
    """Megabits a second that an all-reduce of about a second sends, after one that warms up."""
    numbers = torch.zeros((megabits or 1000) * 1_000_000 // 32)
    for _ in range(2):
        dist.barrier()
        before, start = sent_bytes(rank), perf_counter()
        dist.all_reduce(numbers)
        rate = 8e-6 * (sent_bytes(rank) - before) / (perf_counter() - start)
    if megabits and rate > 1.05 * megabits:
        raise RuntimeError(f"the limit of {megabits} Mbit/s does not hold: {rate:.0f} Mbit/s were sent")
    return rate


def steps_for(training: Training, length: float) -> int:
    """How many steps take about so many seconds, at least one; what the first rank finds is the word."""
    training.step()  # which warms up
    found = torch.tensor(max(1, round(length / seconds(training.step, CPU))))
    dist.broadcast(found, 0)
    return int(found)


def measure(trainings: dict[Side, Training], rank: int, turns: int, length: float) -> dict[Side, tuple[float, float]]:
    """Megabytes and milliseconds of a step of each side."""
    num_steps = {side: steps_for(training, length) for side, training in trainings.items()}
    sent: dict[Side, list[float]] = {side: [] for side in trainings}
    taken: dict[Side, list[float]] = {side: [] for side in trainings}
    for _ in range(turns):
        for side, training in trainings.items():
            dist.barrier()
            before, start = sent_bytes(rank), perf_counter()
            for _ in range(num_steps[side]):
                training.step()
            taken[side].append(1e3 * (perf_counter() - start) / num_steps[side])
            sent[side].append(1e-6 * (sent_bytes(rank) - before) / num_steps[side])
    return {side: (median(sent[side]), median(taken[side])) for side in trainings}


def train(arguments: argparse.Namespace) -> None:
    """One of the two ranks; the first one tells."""
    rank = arguments.rank
    join(rank)
    os.environ |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": ENDS[rank]}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(minutes=2))
    sides = [("dense", 0.0), *((name, s) for name in ("masked", "packed") for s in arguments.sparsities)]
    trainings = {side: Training(side, arguments.widths, arguments.batch) for side in sides}
    measured = {}
    for megabits in arguments.rates:
        limit(rank, megabits)
        rate = measured_rate(rank, megabits)
        measured[megabits] = measure(trainings, rank, arguments.turns, arguments.seconds)
        if rank == 0:
            print(f"{name_of(megabits)}: {rate:.0f} Mbit/s each way in an all-reduce", flush=True)
    if rank == 0:
        print(report(trainings, measured))
    dist.destroy_process_group()


def name_of(megabits: int) -> str:
    return f"{megabits} Mbit/s" if megabits else "no limit"


def report(trainings: dict[Side, Training], measured: dict[int, dict[Side, tuple[float, float]]]) -> str:
    """A row for each side; bytes are those of the first rate."""
    rows = [["side", "sparsity", "gradients, MB", "sent, MB", "x"]]
    rows[0] += [cell for megabits in measured for cell in (f"{name_of(megabits)}, ms", "x")]
    first = next(iter(measured.values()))
    (dense_sent, _), *_ = first.values()
    for side, training in trainings.items():
        sent = first[side][0]
        row = [
            side[0],
            f"{side[1]:g}",
            f"{1e-6 * training.gradient_bytes:.3f}",
            f"{sent:.3f}",
            f"{dense_sent / sent:.1f}",
        ]
        for numbers in measured.values():
            (_, dense), *_ = numbers.values()
            row += [f"{numbers[side][1]:.0f}", f"{dense / numbers[side][1]:.1f}"]
        rows.append(row)
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", type=int, default=[100, 1000, 0], help="Mbit/s; 0 for no limit")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.99])
    parser.add_argument("--widths", nargs="+", type=int, default=[784, 4096, 4096, 10])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7, help="of each side at each rate")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn, about; it has one step at least")
    parser.add_argument("--minutes", type=float, default=20, help="what takes longer is ended")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is None:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # or ranks complain that hosts in the namespaces have no names
        with linked([sys.executable, "-m", "benchmarks.slow_link", *sys.argv[1:], "--rank"]) as ranks:
            wait_for(ranks, 60 * arguments.minutes)
    else:
        warnings.simplefilter("ignore")
        train(arguments)


if __name__ == "__main__":
    main()
