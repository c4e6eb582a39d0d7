"""One rewiring on the shapes of the paper's networks, each method, beside a plain loop over layers in the same run.

    python -m benchmarks.rewire [--device cpu|cuda] [--models wrn_28_2 ...] [--repeats 15]

Weights, momentum and gradients are redrawn before every call, so that the stated number is really pruned each time.
DSR prunes as many as in the paper, SET as many in total, RigL 30 % of each layer, DeepR what half a percent of crossed
signs gives. `bytes` is the peak extra memory of one rewiring per position of the network.
"""

import argparse
import warnings
from collections.abc import Callable
from statistics import NormalDist

import torch
from torch import nn

import regrow
from benchmarks.measure import interleaved, peak_extra_bytes, table
from benchmarks.plain import PlainLoop
from regrow.lab.models import build, sparse_layers

NUM_PRUNED = {"lenet_300_100": 600, "wrn_28_2": 20_000, "resnet_50": 200_000}
SPARSITY = {"lenet_300_100": 0.99, "wrn_28_2": 0.9, "resnet_50": 0.9}


class Bench:
    """The sparse tensors of one model as parameters of their own, with what a rewiring looks at."""

    def __init__(self, model: str, device: torch.device) -> None:
        named = dict(build(model).named_parameters())
        self.shapes = [tuple(named[name].shape) for name in sparse_layers(build(model))]
        self.num_positions = sum(torch.Size(shape).numel() for shape in self.shapes)
        self.device = device
        self.density = 1 - SPARSITY[model]
        self.num_pruned = NUM_PRUNED[model]
        self.fraction = self.num_pruned / (self.density * self.num_positions)
        self.threshold = NormalDist().inv_cdf(0.5 + self.fraction / 2)

    def attach(self, method: regrow.Method) -> tuple[Callable[[], None], Callable[[], None]]:
        """(prepare, rewire) of the library."""
        tensors = [torch.randn(shape, device=self.device) for shape in self.shapes]
        model = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        sparse = regrow.attach(model, optimizer, method, layers="*")

        def prepare() -> None:
            with torch.no_grad():
                for parameter, mask in zip(model, sparse.masks().values(), strict=True):
                    torch.mul(parameter.normal_(), mask, out=parameter)
                    if method.rewires_every_step:  # nearly all on the side their sign says
                        parameter.copy_(_with_few_crossed(parameter, sparse, mask))
                    parameter.grad = torch.randn_like(parameter)
                    momentum = optimizer.state[parameter].setdefault("momentum_buffer", torch.empty_like(parameter))
                    torch.mul(momentum.normal_(), mask, out=momentum)
            sparse.mask_gradients()

        return prepare, sparse.advance

    def methods(self) -> dict[str, regrow.Method]:
        sparsity = 1 - self.density
        return {
            "DSR": regrow.DSR(
                sparsity=sparsity, prune=self.num_pruned, threshold=self.threshold, tolerance=0.99, period=1
            ),
            "SET": regrow.SET(sparsity=sparsity, fraction=self.num_pruned, period=1),
            "RigL": regrow.RigL(sparsity=sparsity, distribution="uniform", period=1),
            "SNFS": regrow.SNFS(sparsity=sparsity, fraction=0.3, period=1),
            "DeepR": regrow.DeepR(sparsity=sparsity),
        }


def _with_few_crossed(parameter: torch.Tensor, sparse: regrow.Sparsifier, mask: torch.Tensor) -> torch.Tensor:
    """Values of which about half a percent are on the wrong side of zero."""
    index = [id(p) for p in sparse.storage.parameters].index(id(parameter))
    sign = torch.where(sparse.storage.beside("sign")[index], 1.0, -1.0)
    crossed = torch.rand_like(parameter) < 0.005
    return parameter.abs() * sign * torch.where(crossed, -1.0, 1.0) * mask


def measure(model: str, device: torch.device, repeats: int) -> list[list[str]]:
    bench = Bench(model, device)
    plain = PlainLoop(bench.shapes, bench.density, device)
    loops = {
        "DSR": lambda: plain.dsr(bench.threshold),
        "SET": lambda: plain.set(bench.fraction),
        "RigL": lambda: plain.rigl(0.3),
    }
    rows = []
    for name, method in bench.methods().items():
        prepare, rewire = bench.attach(method)
        sides = {"ours": (prepare, rewire)}
        if name in loops:
            sides["plain"] = (plain.redraw, loops[name])
        took = interleaved(sides, device, repeats)
        prepare()
        extra = peak_extra_bytes(rewire, device) / bench.num_positions
        ratio = f"{took['plain'] / took['ours']:.1f}x" if "plain" in took else ""
        plain_ms = f"{took['plain']:.2f}" if "plain" in took else ""
        rows.append([model, device.type, name, f"{took['ours']:.2f}", plain_ms, ratio, f"{extra:.1f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=list(NUM_PRUNED), choices=list(NUM_PRUNED))
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [["model", "device", "method", "ms", "plain ms", "ratio", "bytes"]]
    for model in arguments.models:
        rows += measure(model, torch.device(arguments.device), arguments.repeats)
    print(table(rows))


if __name__ == "__main__":
    main()
