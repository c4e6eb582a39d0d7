"""A whole training step of LeNet-300-100 on a CPU: packed storage against the plain dense network.

    python -m benchmarks.lenet_cpu [--sparsity 0.99] [--blocks 20] [--steps 50] [--profile]

Batches of 100, BatchNorm and all, SGD with Nesterov momentum. Each side is measured with one thread and with two (or as
many as there are), and its best counts. Milliseconds, medians of blocks that take turns.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from statistics import median

import torch
from torch.nn.functional import cross_entropy

import regrow
from benchmarks.measure import seconds, table
from regrow.lab.models import build, sparse_layers

CPU = torch.device("cpu")


def make_step(sparsity: float | None) -> Callable[[], None]:
    """A training step of the network, dense or packed."""
    torch.manual_seed(0)
    model = build("lenet_300_100")
    names = sparse_layers(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    if sparsity is not None:
        method = regrow.DSR(sparsity=sparsity, period=10**9)
        regrow.attach(model, optimizer, method, layers=names, storage="packed")
    images, labels = torch.rand(100, 1, 28, 28), torch.randint(10, (100,))

    def step() -> None:
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(sparsity: float, threads: list[int], blocks: int, steps: int) -> dict[tuple[str, int], float]:
    """Median milliseconds of a step of each side with each number of threads."""
    works = {"dense": make_step(None), "packed": make_step(sparsity)}
    times: dict[tuple[str, int], list[float]] = {(side, n): [] for side in works for n in threads}
    for block in range(blocks + 1):
        for (side, n), taken in times.items():
            torch.set_num_threads(n)
            work = works[side]
            work()
            each = [1000 * seconds(work, CPU) for _ in range(steps)]
            if block > 0:
                taken += each
    return {case: median(taken) for case, taken in times.items()}


def profile(sparsity: float, threads: int) -> None:
    """Print where a packed step spends its time."""
    torch.set_num_threads(threads)
    step = make_step(sparsity)
    for _ in range(20):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(100):
            step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, default=0.99)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--profile", action="store_true", help="where the time of a packed step goes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.profile:
        profile(arguments.sparsity, arguments.threads[0])
        return
    took = compare(arguments.sparsity, arguments.threads, arguments.blocks, arguments.steps)
    rows = [["threads", "dense ms", "packed ms"]]
    rows += [[str(n), f"{took['dense', n]:.3f}", f"{took['packed', n]:.3f}"] for n in arguments.threads]
    best = {side: min(took[side, n] for n in arguments.threads) for side in ("dense", "packed")}
    rows.append(["best", f"{best['dense']:.3f}", f"{best['packed']:.3f}"])
    print(table(rows))
    print(f"dense / packed: {best['dense'] / best['packed']:.2f}")


if __name__ == "__main__":
    main()
