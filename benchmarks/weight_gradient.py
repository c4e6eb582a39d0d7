"""The weight gradients of WRN-28-2's convolutions on a GPU: ours beside cuDNN's, which must be deterministic, too.

    python -m benchmarks.weight_gradient [--batch 100] [--repeats 20]

bf16, channels innermost. Calls go round eight sets of images, more than the cache holds, and are replayed as one CUDA
graph, so that no time passes between them. `error` is relative to the gradient in float64.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import seconds, table
from regrow.lab.run.convolution import weight_gradient

NUM_SETS = 8
DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Convolution:
    """One of the network's, and how often it is there."""

    num_in: int
    num_out: int
    image: int
    stride: int = 1
    size: int = 3
    times: int = 1

    def __str__(self) -> str:
        return f"{self.size}x{self.size} {self.num_in}->{self.num_out}, {self.image}x{self.image}, /{self.stride}"


LAYERS = (
    Convolution(3, 16, 32),
    Convolution(16, 32, 32),
    Convolution(16, 32, 32, size=1),
    Convolution(32, 32, 32, times=7),
    Convolution(32, 64, 32, stride=2),
    Convolution(32, 64, 32, stride=2, size=1),
    Convolution(64, 64, 16, times=7),
    Convolution(64, 128, 16, stride=2),
    Convolution(64, 128, 16, stride=2, size=1),
)


def by_cudnn(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    shape = (slopes.shape[1], images.shape[1], size, size)
    weight = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)
    stride_, around = [stride, stride], [size // 2, size // 2]
    made: Tensor = torch.ops.aten.convolution_backward(
        slopes, images, weight, None, stride_, around, [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return made


def microseconds(calls: Sequence[Callable[[], object]], repeats: int) -> float:
    """Median time of one of the calls."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    seconds(graph.replay, DEVICE)
    return 1e6 * median(seconds(graph.replay, DEVICE) for _ in range(repeats)) / len(calls)


def measure(layer: Convolution, batch: int, repeats: int) -> list[str]:
    def draw(num_channels: int, size: int) -> list[Tensor]:
        shape = (batch, num_channels, size, size)
        drawn = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(NUM_SETS)]
        return [one.contiguous(memory_format=torch.channels_last) for one in drawn]

    sets = list(zip(draw(layer.num_out, layer.image // layer.stride), draw(layer.num_in, layer.image), strict=True))
    exact = by_cudnn(*(one.double() for one in sets[0]), layer.size, layer.stride)
    times, errors = [], []
    for way in (by_cudnn, weight_gradient):
        made = way(*sets[0], layer.size, layer.stride).double()
        errors.append(float((made - exact).norm() / exact.norm()))
        calls = [lambda way=way, one=one: way(*one, layer.size, layer.stride) for one in sets]
        times.append(microseconds(calls, repeats))
    return [
        str(layer),
        str(layer.times),
        *(f"{time:.1f}" for time in times),
        f"{times[0] / times[1]:.1f}",
        *(f"{error:.4f}" for error in errors),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU's kernels, and there is no GPU here")
    torch.backends.cudnn.deterministic = True
    head = ["layer", "times", "cuDNN, us", "ours, us", "ratio", "error", "ours"]
    print(table([head, *(measure(layer, given.batch, given.repeats) for layer in LAYERS)]))


if __name__ == "__main__":
    main()
