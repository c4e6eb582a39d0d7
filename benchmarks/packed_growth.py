"""What a rewiring costs with packed storage, by the way connections grow: at random, by sampled gradients, by all.

    python -m benchmarks.packed_growth [--device cpu|cuda] [--networks ...] [--sparsities 0.9 0.99] [--rounds 10]

Every second step of a training rewires 30 % of each layer. `rewires` is the median time of those steps, `other` of the
others, in milliseconds; the methods take turns. `bytes` is the peak memory of a step beyond what stays from step to
step, by torch's allocator, per position of the sparse layers: what a rewiring takes is the difference.
"""

import argparse
import warnings
from statistics import median

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow
from benchmarks.measure import peak_allocated_bytes, seconds, table

METHODS = ("SET", "GSE", "RigL")
NETWORKS = {
    "784-4096-4096-10": lambda: (nn.Sequential(*_linear(784, 4096), *_linear(4096, 4096), nn.Linear(4096, 10)), (784,)),
    "3x3, 64-128-128, 8 x 8": lambda: (
        nn.Sequential(*_conv(64, 128), *_conv(128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
        (64, 8, 8),
    ),
}


def _linear(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]


def _conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]


class Training:
    """A network in training with packed storage, of which every second step rewires."""

    def __init__(self, network: str, method: str, sparsity: float, device: torch.device, batch: int) -> None:
        torch.manual_seed(0)
        model, shape = NETWORKS[network]()
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        own = regrow.METHODS[method](sparsity=sparsity, distribution="uniform", fraction=0.3, period=2)
        self.sparse = regrow.attach(self.model, self.optimizer, own, storage=regrow.Packed(kernels="sparse"))
        self.images = torch.randn(batch, *shape, device=device)
        self.labels = torch.randint(10, (batch,), device=device)
        self.device = device

    def step(self) -> None:
        cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(network: str, sparsity: float, device: torch.device, batch: int, rounds: int) -> list[list[str]]:
    """A row for each method."""
    trainings = {method: Training(network, method, sparsity, device, batch) for method in METHODS}
    times: dict[tuple[str, int], list[float]] = {(method, due): [] for method in METHODS for due in (0, 1)}
    for number in range(rounds + 2):
        for method, training in trainings.items():
            for due in (0, 1):
                taken = seconds(training.step, device)
                if number >= 2:
                    times[method, due].append(1000 * taken)
    rows = []
    for method, training in trainings.items():
        num_positions = sum(torch.Size(layer.shape).numel() for layer in training.sparse.layers)
        other, peak = (peak_allocated_bytes(training.step, device) / num_positions for _ in range(2))
        told = [f"{median(times[method, due]):.1f}" for due in (0, 1)]
        rows.append([network, f"{sparsity:g}", method, *told, f"{other:.2f}", f"{peak:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.99])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [["network", "sparsity", "method", "other ms", "rewires ms", "other bytes", "rewires bytes"]]
    for network in arguments.networks:
        for sparsity in arguments.sparsities:
            rows += measure(network, sparsity, torch.device(arguments.device), arguments.batch, arguments.rounds)
    print(table(rows))


if __name__ == "__main__":
    main()
