"""Through how many of our modules a training step goes that rewires: how far a reader has to follow it.

    python -m benchmarks.modules [--method SET] [--storage dense]

Calls are counted with `sys.setprofile`, in a step of the optimizer with a rewiring in a network of two linear layers,
after some steps that warm up. For each module: how many functions of it were called, and how many lines its file has.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import regrow

ROOT = Path(regrow.__file__).parent


def calls_in(step: object) -> Counter[str]:
    """How often functions of each of our files are called."""
    calls: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            calls[str(path.relative_to(ROOT))] += 1

    sys.setprofile(watch)
    try:
        step()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return calls


def rewiring(method: str, storage: str) -> Counter[str]:
    """The calls of one step that rewires."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.METHODS[method](sparsity=0.9, period=2), storage=storage)
    for _ in range(3):
        model(torch.randn(32, 784)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.randn(32, 784)).square().mean().backward()
    calls = calls_in(optimizer.step)
    assert len(sparse.history) == 2
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=sorted(regrow.METHODS), default="SET")
    parser.add_argument("--storage", choices=("dense", "packed"), default="dense")
    arguments = parser.parse_args()
    calls = rewiring(arguments.method, arguments.storage)
    for name, count in calls.most_common():
        print(f"{count:5}  {name}  ({len((ROOT / name).read_text().splitlines())} lines)")
    print(f"{sum(calls.values())} calls, {len(calls)} modules")


if __name__ == "__main__":
    main()
