"""How long attaching takes, and a step of a small network, in which hooks weigh most; beside another revision.

    python -m benchmarks.attach [--against REVISION] [--model resnet_50] [--rounds N]

Each revision has a process of its own, and they take turns, so that a busy machine slows both alike. Medians, in
milliseconds of one thread of the CPU. It calls only what has been public from the first.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch.nn.functional import cross_entropy

import regrow
from benchmarks.checkout import checkout_of, paths_of
from regrow.lab.models import build

NEVER = 10**9
METHODS = {"DSR": regrow.DSR(sparsity=0.9, period=NEVER), "RigL": regrow.RigL(sparsity=0.9, period=NEVER)}


def attaching(model_name: str, method: str, storage: str) -> Callable[[], float]:
    """The time of attaching to a fresh model."""

    def once() -> float:
        model = build(model_name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        start = process_time()
        regrow.attach(model, optimizer, METHODS[method], storage=storage)
        return process_time() - start

    return once


def stepping(is_sparse: bool, num_steps: int = 50) -> Callable[[], float]:
    """The time of a step of LeNet-300-100."""
    model = build("lenet_300_100")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(100, 1, 28, 28), torch.randint(10, (100,))
    sparse = regrow.attach(model, optimizer, METHODS["DSR"]) if is_sparse else None

    def once() -> float:
        start = process_time()
        for _ in range(num_steps):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert sparse is None or sparse.sparsity > 0.8
        return (process_time() - start) / num_steps

    return once


def serve(model_name: str) -> None:
    """Measure everything once for each line that is read."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = {
        f"attach to {model_name}, {method}, {storage}": attaching(model_name, method, storage)
        for method in METHODS
        for storage in ("dense", "packed")
    }
    cases |= {"step, not attached": stepping(False), "step, DSR, dense": stepping(True)}
    for _ in sys.stdin:
        print(json.dumps({name: 1000 * case() for name, case in cases.items()}), flush=True)


class Server:
    """A process that measures with the library in a folder."""

    def __init__(self, folder: Path, model_name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.attach", "--serve", "--model", model_name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=folder, env=paths_of(folder), **pipes)

    def measure(self) -> dict[str, float]:
        print(file=self._process.stdin, flush=True)
        told: dict[str, float] = json.loads(self._process.stdout.readline())
        return told

    def stop(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="a revision to compare with")
    parser.add_argument("--model", default="resnet_50")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.model)
        return
    here, against = Path(__file__).resolve().parents[1], arguments.against
    with checkout_of(against, "attach.py") if against else nullcontext() as there:
        servers = [Server(folder, arguments.model) for folder in (here, there) if folder is not None]
        rounds = [[server.measure() for server in servers] for _ in range(arguments.rounds + 1)][1:]
        for server in servers:
            server.stop()
    for name in rounds[0][0]:
        found = [median(told[i][name] for told in rounds) for i in range(len(servers))]
        print(f"{name:44}", *(f"{own:9.3f}" for own in found), f"{found[0] / found[-1]:7.3f}" if against else "")


if __name__ == "__main__":
    main()
