"""Sparse layers on a CPU beside dense ones, torch's CSR matrices and, where it is installed, sparseprop, in one run.

    python -m benchmarks.cpu_kernels [--quick] [--threads 2] [--repeats 10] [--only "4096->4096, 128"]

Milliseconds, medians of blocks that take turns. `step` is forward, both gradients and an update with momentum, of all
weights of the dense layer, of the nonzeros of the sparse one. CSR has no gradient for its values that is not dense, so
only its forward is there. A table for each layer. A whole network is in `benchmarks.lenet_cpu`.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import interleaved, table
from regrow.kernels.cpu.functions import sparse_backward, sparse_forward
from regrow.kernels.cpu.pattern import Pattern, make_pattern
from regrow.kernels.cpu.planes import Convolution

CPU = torch.device("cpu")
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
LINEAR = [
    (rows, columns, batch) for rows, columns in ((300, 784), (1024, 1024), (4096, 4096)) for batch in (32, 128, 1024)
]
CONV = [(64, 32, 32), (128, 16, 32)]  # channels, pixels along a side, images
SAME = Convolution((3, 3), (1, 1), (1, 1), (1, 1))
Work = Callable[[], object]


def random_pattern(num_rows: int, num_columns: int, sparsity: float) -> Pattern:
    columns, rows = (torch.rand(num_columns, num_rows) >= sparsity).nonzero(as_tuple=True)
    return make_pattern(rows, columns, num_rows, num_columns)


def with_update(gradient: Callable[[], Tensor], weight: Tensor) -> Work:
    """A step: whatever gives the gradient, then SGD with momentum."""
    momentum = torch.zeros_like(weight)

    def step() -> None:
        momentum.mul_(0.9).add_(gradient())
        weight.add_(momentum, alpha=-1e-6)

    return step


def sparse_sides(pattern: Pattern, x: Tensor, dy: Tensor, layer: Convolution | None) -> dict[str, Work]:
    values = torch.randn(pattern.num_entries)

    def run_forward() -> Tensor:
        return sparse_forward(pattern, values, x, None, layer)

    def run_backward() -> Tensor:
        return sparse_backward(pattern, values, x, dy, layer)[1]

    step = with_update(lambda: (run_forward(), run_backward())[1], values)
    return {"forward": run_forward, "backward": run_backward, "step": step}


def dense_sides(weight: Tensor, x: Tensor, dy: Tensor, layer: Convolution | None) -> dict[str, Work]:
    def run_forward() -> Tensor:
        return x @ weight.t() if layer is None else F.conv2d(x, weight, padding=1)

    def run_backward() -> Tensor:
        if layer is None:
            return (dy @ weight, dy.t() @ x)[1]
        settings = (None, layer.stride, layer.padding, layer.dilation, False, [0, 0], 1, [True, True, False])
        return torch.ops.aten.convolution_backward(dy, x, weight, *settings)[1]

    step = with_update(lambda: (run_forward(), run_backward())[1], weight)
    return {"forward": run_forward, "backward": run_backward, "step": step}


def csr_side(weight: Tensor, x: Tensor) -> dict[str, Work]:
    matrix, turned = weight.to_sparse_csr(), x.t()
    return {"CSR": lambda: (matrix @ turned).t()}


def sparseprop_side(weight: Tensor, x: Tensor, dy: Tensor) -> dict[str, Work]:
    from sparseprop.modules import SparseConv2d, SparseLinear

    if weight.ndim == 2:
        dense: nn.Module = nn.Linear(*reversed(weight.shape), bias=False)
        convert = SparseLinear.from_dense
    else:
        dense = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
        convert = SparseConv2d.from_dense
    dense.weight.data.copy_(weight)
    module, source = convert(dense), x.clone().requires_grad_()
    values = next(module.parameters())

    def gradient() -> Tensor:
        return torch.autograd.grad(module(source), (source, values), dy)[1]

    return {"sparseprop": with_update(gradient, values.data)}


def measure(name: str, shape: tuple[int, ...], x: Tensor, dy: Tensor, repeats: int) -> Iterator[list[str]]:
    """One row for every sparsity of a layer."""
    layer = None if len(shape) == 2 else SAME
    for sparsity in SPARSITIES:
        pattern = random_pattern(shape[0], torch.Size(shape[1:]).numel(), sparsity)
        weight = torch.randn(shape)
        sparse_weight = weight * (torch.rand(shape) >= sparsity)
        sides = {f"dense {k}": work for k, work in dense_sides(weight, x, dy, layer).items()}
        sides |= {f"sparse {k}": work for k, work in sparse_sides(pattern, x, dy, layer).items()}
        if layer is None:
            sides |= csr_side(sparse_weight, x)
        if find_spec("sparseprop") is not None:
            sides |= sparseprop_side(sparse_weight, x, dy)
        took = interleaved({side: (lambda: None, work) for side, work in sides.items()}, CPU, repeats)
        parts = ("forward", "backward", "step")
        ratios = [f"{took[f'dense {part}'] / took[f'sparse {part}']:.1f}x" for part in parts]
        numbers = [f"{took[f'{side} {part}']:.2f}" for side in ("dense", "sparse") for part in parts]
        others = [f"{took[side]:.2f}" if side in took else "" for side in ("CSR", "sparseprop")]
        yield [name, str(len(x)), f"{sparsity:g}", *numbers, *ratios, *others]


def layers(only: str, quick: bool, repeats: int) -> Iterator[list[list[str]]]:
    """One table for every layer and batch whose name has `only` in it, as soon as it is there."""
    head = ["layer", "batch", "sparsity"]
    head += [f"{side} {part}" for side in ("dense", "sparse") for part in ("fwd", "bwd", "step")]
    head += ["fwd", "bwd", "step", "CSR fwd", "sparseprop step"]
    for num_rows, num_columns, batch in LINEAR[4:5] if quick else LINEAR:
        name = f"linear {num_columns}->{num_rows}"
        if only in f"{name}, {batch}":
            x, dy = torch.randn(batch, num_columns), torch.randn(batch, num_rows)
            yield [head, *measure(name, (num_rows, num_columns), x, dy, repeats)]
    for channels, side, batch in CONV[1:] if quick else CONV:
        name = f"conv 3x3 {channels} of {side}x{side}"
        if only in f"{name}, {batch}":
            x, dy = (torch.randn(batch, channels, side, side) for _ in range(2))
            yield [head, *measure(name, (channels, channels, 3, 3), x, dy, repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one linear layer and one convolution")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="", help='layers with this in "name, batch", e.g. "conv" or "->4096, 128"')
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    for rows in layers(arguments.only, arguments.quick, arguments.repeats):
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
