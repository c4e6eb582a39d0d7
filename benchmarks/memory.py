"""What a training run holds in memory for every weight position: values, indices, gradient, optimizer state, and peak.

    python -m benchmarks.memory [--device cpu|cuda] [--models wrn_28_2 ...] [--sparsities 0.9 0.99] [--batch 8]

Bytes per position of the sparse layers, counted from the tensors themselves after two steps. `formula` is what they
should be: with d = 1 - s active weights per position 4d each for values, gradient and momentum, 4d more for Adam's
second moment, and the indices; dense storage has d = 1 and a byte of mask. `peak` is the most that torch's allocator
holds during a step beyond all that and beyond what the same dense network takes if it drops the gradient of every
sparse layer as soon as it is there: activations, workspaces of the libraries, and one layer's gradient. It is given per
position, too; `largest` is the largest layer, dense, once.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

import regrow
from benchmarks.measure import peak_allocated_bytes, table
from benchmarks.step import SETTINGS
from regrow.lab.models import PAPER, build, sparse_layers
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed.kind import Kernels
from regrow.storage.packed.storage import PackedStorage

SPARSITIES = (0.8, 0.9, 0.95, 0.99)
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "momentum": lambda parameters: SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: Adam(parameters, lr=1e-4),
}


@dataclass(frozen=True)
class Held:
    """Bytes that live from step to step."""

    values: int
    indices: int
    gradient: int
    state: int

    @property
    def total(self) -> int:
        return self.values + self.indices + self.gradient + self.state


def held_by(sparse: regrow.Sparsifier, optimizer: Optimizer) -> Held:
    """What the sparse layers of a network in training hold, after a backward pass."""
    storage = sparse.storage
    if isinstance(storage, PackedStorage):
        indices = sum(slot.places.num_bytes for slot in storage.slots)
    else:
        indices = sum(mask.nbytes for mask in sparse.masks().values())
    return Held(
        sum(parameter.nbytes for parameter in storage.parameters),
        indices,
        sum(parameter.grad.nbytes for parameter in storage.parameters if parameter.grad is not None),
        sum(tensor.nbytes for parameter in storage.parameters for tensor in state_like(optimizer, parameter)),
    )


def formula(density: float, storage: str, optimizer: str) -> float:
    """The bytes a position should take."""
    per_value = 16 if optimizer == "Adam" else 12
    return per_value + 1 if storage == "dense" else density * (per_value + 4)


class Training:
    """A model in training on one random batch."""

    def __init__(self, name: str, device: torch.device, batch: int, optimizer: str) -> None:
        setting = SETTINGS[name]
        torch.manual_seed(0)
        self.device = device
        self.model = build(name).to(device)
        self.names = sparse_layers(self.model)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.images = torch.randn(batch, *setting.image, device=device)
        self.labels = torch.randint(setting.num_classes, (batch,), device=device)

    def step(self) -> None:
        cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()

    def peak(self) -> int:
        """The most that a step allocates, gradients included, once all that is made once is there."""
        for _ in range(2):
            self.step()
            self.optimizer.zero_grad()
        return peak_allocated_bytes(self.step, self.device)


def sparse_parameters(model: nn.Module, names: list[str]) -> list[nn.Parameter]:
    return [model.get_parameter(name) for name in names]


def activations(name: str, device: torch.device, batch: int, optimizer: str) -> int:
    """What a step takes apart from what the sparse weights hold: their gradients are dropped one by one."""
    training = Training(name, device, batch, optimizer)
    for parameter in sparse_parameters(training.model, training.names):
        parameter.register_post_accumulate_grad_hook(_drop)
    return training.peak()


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def measure(
    name: str,
    device: torch.device,
    batch: int,
    optimizer: str,
    storage: str,
    sparsity: float,
    kernels: Kernels,
    base: int,
) -> list[str]:
    """One row of the table; `base` is what activations and workspaces take."""
    training = Training(name, device, batch, optimizer)
    sizes = [parameter.numel() for parameter in sparse_parameters(training.model, training.names)]
    sparse = regrow.attach(
        training.model,
        training.optimizer,
        regrow.DSR(sparsity=sparsity, period=10**9),
        layers=training.names,
        storage=regrow.Packed(kernels=kernels) if storage == "packed" else storage,
    )
    peak = training.peak()
    held = held_by(sparse, training.optimizer)
    num = sum(sizes)
    expected = formula(1 - sparsity, storage, optimizer)
    numbers = [held.values, held.indices, held.gradient, held.state, held.total]
    beyond = max(0, peak - held.gradient - base)
    cells = [f"{number / num:.3f}" for number in numbers]
    return [
        name,
        optimizer,
        storage,
        f"{sparsity:g}",
        *cells,
        f"{expected:.3f}",
        f"{beyond / num:.2f}",
        f"{4 * max(sizes) / num:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["wrn_28_2"], choices=PAPER)
    parser.add_argument("--sparsities", nargs="+", type=float, default=SPARSITIES)
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--kernels", choices=get_args(Kernels), default="auto", help="how packed layers compute on a CPU"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(arguments.device)
    head = ["model", "optimizer", "storage", "sparsity", "values", "indices", "gradient", "state"]
    rows = [[*head, "total", "formula", "peak", "largest"]]
    for name in arguments.models:
        for optimizer in arguments.optimizers:
            base = activations(name, device, arguments.batch, optimizer)
            cases = [("dense", arguments.sparsities[0]), *(("packed", s) for s in arguments.sparsities)]
            rows += [
                measure(name, device, arguments.batch, optimizer, *case, arguments.kernels, base) for case in cases
            ]
    print(table(rows))


if __name__ == "__main__":
    main()
