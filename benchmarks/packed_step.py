"""What packed storage costs in time: a training step of a model beside the same step with dense storage.

    python -m benchmarks.packed_step [--device cpu|cuda] [--model resnet_50] [--batch 256] [--modes eager compiled]

Both keep the same sparsity, with DSR attached and no rewiring due; on a GPU in bfloat16. They take turns in blocks, and
medians count. `spread` is how far the medians of odd and even blocks of dense storage lie apart: less is noise.
"""

import argparse
import warnings
from statistics import median

import torch

from benchmarks.measure import seconds, table
from benchmarks.step import SETTINGS, Training

STORAGES = ("dense", "packed")
NEVER = 10**9


def compare(name: str, device: torch.device, batch: int, mode: str, blocks: int, steps: int) -> list[str]:
    """One row: milliseconds per step with each storage, and their ratio."""
    trainings = {storage: Training(name, device, batch) for storage in STORAGES}
    attached = [training.attach(NEVER, storage) for storage, training in trainings.items()]
    for training in trainings.values():
        if mode == "compiled":
            training.forward = torch.compile(training.model)
        training.step()
    times: dict[str, list[float]] = {storage: [] for storage in STORAGES}
    for block in range(blocks + 2):
        for storage, training in trainings.items():
            taken = seconds(lambda step=training.step: [step() for _ in range(steps)], device) / steps
            if block >= 2:
                times[storage].append(1000 * taken)
    for sparse in attached:
        sparse.detach()
    dense, packed = (median(times[storage]) for storage in STORAGES)
    spread = abs(median(times["dense"][::2]) / median(times["dense"][1::2]) - 1)
    return [name, str(batch), mode, f"{dense:.2f}", f"{packed:.2f}", f"{packed / dense:.3f}", f"{100 * spread:.1f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet_50", choices=list(SETTINGS))
    parser.add_argument("--batch", type=int, help="by default as the paper trains the model")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--blocks", type=int, default=8, help="at least 2")
    parser.add_argument("--steps", type=int, default=10, help="in each block")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(arguments.device)
    batch = arguments.batch or SETTINGS[arguments.model].batch
    rows = [["model", "batch", "mode", "dense ms", "packed ms", "packed / dense", "spread"]]
    for mode in arguments.modes:
        rows.append(compare(arguments.model, device, batch, mode, max(2, arguments.blocks), arguments.steps))
    print(table(rows))


if __name__ == "__main__":
    main()
