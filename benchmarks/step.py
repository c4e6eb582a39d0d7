"""What sparsity costs in a training step: dense, masked, and masked with rewirings, eager, compiled and captured.

    python -m benchmarks.step [--device cpu|cuda] [--models wrn_28_2 resnet_50] [--quick]

All three run on the same model and the same weights in alternating blocks; only the hooks come and go. The cost of a
rewiring (DSR) is spread over the paper's shortest period. `spread` is how far two medians of the dense step itself lie
apart: a smaller difference is noise.
"""

import argparse
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch
from torch.nn.functional import cross_entropy

import regrow
from benchmarks.measure import seconds, table
from regrow.lab.models import build, sparse_layers


@dataclass(frozen=True)
class Setting:
    """One model as the paper trains it."""

    image: tuple[int, ...]
    batch: int
    num_classes: int
    sparsity: float
    num_pruned: int
    period: int


SETTINGS = {
    "lenet_300_100": Setting((1, 28, 28), 100, 10, 0.99, 600, 100),
    "wrn_28_2": Setting((3, 32, 32), 100, 10, 0.9, 20_000, 100),
    "resnet_50": Setting((3, 224, 224), 256, 1000, 0.9, 200_000, 1000),
}


class Training:
    """A model in training on one random batch."""

    def __init__(self, name: str, device: torch.device, batch: int) -> None:
        setting = SETTINGS[name]
        self.setting = setting
        self.device = device
        self.model = build(name).to(device=device, memory_format=torch.channels_last)
        self.names = sparse_layers(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        images = torch.randn(batch, *setting.image, device=device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(setting.num_classes, (batch,), device=device)

    def attach(self, period: int, storage: str = "dense") -> regrow.Sparsifier:
        method = regrow.DSR(sparsity=self.setting.sparsity, prune=self.setting.num_pruned, period=period)
        return regrow.attach(self.model, self.optimizer, method, layers=self.names, storage=storage)

    def step(self) -> None:
        with torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext():
            loss = cross_entropy(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def capture(self) -> Callable[[], None]:
        """The step as a CUDA graph, with whatever hooks are on the optimizer now."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def measure(training: Training, mode: str, blocks: int, steps: int) -> list[str]:
    """One row: milliseconds per step and the cost of masking and of rewiring in percent."""
    never = 10**9
    if mode.startswith("compiled"):
        training.forward = torch.compile(training.model)
    work = {"dense": training.step, "masked": training.step}
    if "captured" in mode:
        captured = training.attach(never)  # stays, since the graph goes on reading its masks
        work["masked"] = training.capture()
        captured.detach()
        work["dense"] = training.capture()
    times: dict[str, list[float]] = {"dense": [], "masked": [], "again": []}
    for block in range(blocks + 2):
        for side in times:
            hooked = training.attach(never) if side == "masked" and "captured" not in mode else None
            run = work["dense" if side == "again" else side]
            run()
            taken = seconds(lambda run=run: [run() for _ in range(steps)], training.device) / steps
            if block >= 2:
                times[side].append(1000 * taken)
            if hooked:
                hooked.detach()
    dense, masked, again = (median(times[side]) for side in ("dense", "masked", "again"))
    base = (dense + again) / 2
    rewiring = _rewiring_ms(training)
    amortised = rewiring / training.setting.period
    return [
        mode,
        f"{base:.3f}",
        f"{masked:.3f}",
        f"{100 * (masked / base - 1):+.2f} %",
        f"{rewiring:.2f}",
        f"{100 * ((masked + amortised) / base - 1):+.2f} %",
        f"{100 * abs(dense / again - 1):.2f} %",
    ]


def _rewiring_ms(training: Training) -> float:
    sparse = training.attach(1)
    times = [1000 * seconds(sparse.advance, training.device) for _ in range(13)]
    sparse.detach()
    return median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=list(SETTINGS))
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled", "captured", "compiled+captured"])
    parser.add_argument("--quick", action="store_true", help="few blocks of few steps")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    models = arguments.models or (["wrn_28_2", "resnet_50"] if on_gpu else ["lenet_300_100"])
    head = ["model", "mode", "dense ms", "masked ms", "masking", "rewiring ms", "with rewiring", "spread"]
    rows = [head]
    for name in models:
        setting = SETTINGS[name]
        usual = (["compiled"] if name == "resnet_50" else ["eager", "captured"]) if on_gpu else ["eager"]
        for mode in arguments.modes or usual:
            batch = setting.batch if on_gpu or name == "lenet_300_100" else 8
            steps = 20 if name == "resnet_50" else 100
            blocks = 3 if arguments.quick else 11
            training = Training(name, device, batch)
            rows.append([name, *measure(training, mode, blocks, steps if not arguments.quick else steps // 5)])
            print(table(rows[-1:]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
