"""The weight gradients of a network's convolutions on a GPU: ours beside cuDNN's, which must be deterministic, too.

    python -m benchmarks.weight_gradient [--model wrn_28_2] [--image 32] [--batch 100] [--repeats 20]
    python -m benchmarks.weight_gradient --model resnet_50_small --image 64 --batch 256

bf16, channels innermost. Calls go round several sets of images, more than the cache holds, and are replayed as one CUDA
graph, so that no time passes between them. `product` is the same as one matrix product, where a convolution is one;
`free` is cuDNN's that need not be deterministic. `error` is relative to the gradient in float64, of the first images.
Where ours is not asked for in a run, for other numbers of channels, its time is in brackets; where a way fails, what it
raises stands there.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.measure import seconds, table
from regrow.lab.models import build
from regrow.lab.run.convolution import CHANNELS_IN, CHANNELS_OUT, weight_gradient

Way = Callable[[Tensor, Tensor, int, int], Tensor]
DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Convolution:
    """One of the network's."""

    num_in: int
    num_out: int
    image: int
    stride: int
    size: int

    def __str__(self) -> str:
        return f"{self.size}x{self.size} {self.num_in}->{self.num_out}, {self.image}x{self.image}, /{self.stride}"

    @property
    def is_ours(self) -> bool:
        return self.num_in in CHANNELS_IN and self.num_out in CHANNELS_OUT


def convolutions_of(name: str, image: int) -> Counter[Convolution]:
    """Those of a model of the lab for images of a size, and how often each is there."""
    found: Counter[Convolution] = Counter()

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        stride, size = module.stride[0], module.kernel_size[0]
        found[Convolution(module.in_channels, module.out_channels, inputs[0].shape[-1], stride, size)] += 1

    with torch.device("meta"):
        model = build(name)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(note)
        model(torch.empty(1, 3, image, image))
    return found


def by_cudnn(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    shape = (slopes.shape[1], images.shape[1], size, size)
    weight = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)
    stride_, around = [stride, stride], [size // 2, size // 2]
    made: Tensor = torch.ops.aten.convolution_backward(
        slopes, images, weight, None, stride_, around, [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return made


def by_product(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    left, right = (one.permute(0, 2, 3, 1).reshape(-1, one.shape[1]) for one in (slopes, images))
    return (left.t() @ right)[:, :, None, None]


def freely(slopes: Tensor, images: Tensor, size: int, stride: int) -> Tensor:
    torch.backends.cudnn.deterministic = False
    try:
        return by_cudnn(slopes, images, size, stride)
    finally:
        torch.backends.cudnn.deterministic = True


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


def measure(layer: Convolution, times: int, batch: int, repeats: int) -> list[str]:
    num_sets = 8 if batch * layer.num_in * layer.image**2 < 1 << 25 else 3

    def draw(num_channels: int, size: int) -> list[Tensor]:
        shape = (batch, num_channels, size, size)
        drawn = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(num_sets)]
        return [one.contiguous(memory_format=torch.channels_last) for one in drawn]

    sets = list(zip(draw(layer.num_out, layer.image // layer.stride), draw(layer.num_in, layer.image), strict=True))
    few = [one[:16].contiguous(memory_format=torch.channels_last) for one in sets[0]]
    exact = by_cudnn(*(one.double() for one in few), layer.size, layer.stride)
    ways: list[Way | None] = [by_cudnn, weight_gradient, freely]
    ways.append(by_product if (layer.size, layer.stride) == (1, 1) else None)
    told, taken = [], []
    for way in ways:
        if way is None:
            told += ["", ""]
            continue
        try:
            error = float((way(*few, layer.size, layer.stride).double() - exact).norm() / exact.norm())
            calls = [lambda way=way, one=one: way(*one, layer.size, layer.stride) for one in sets]
            taken.append(microseconds(calls, repeats))
        except Exception as problem:  # kernels were not made for all shapes, and tell so in many ways
            told += [type(problem).__name__, ""]
            continue
        is_bracketed = way is weight_gradient and not layer.is_ours
        told += [f"({taken[-1]:.1f})" if is_bracketed else f"{taken[-1]:.1f}", f"{error:.4f}"]
    return [str(layer), str(times), *told, f"{times * taken[0] / 1000:.2f}", f"{times * min(taken) / 1000:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wrn_28_2")
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU's kernels, and there is no GPU here")
    torch.backends.cudnn.deterministic = True
    ways = [cell for way in ("cuDNN", "ours", "free", "product") for cell in (f"{way}, us", "error")]
    rows = [["layer", "times", *ways, "cuDNN, ms", "best, ms"]]
    for layer, times in convolutions_of(given.model, given.image).items():
        rows.append(measure(layer, times, given.batch, given.repeats))
        print(table([rows[0], rows[-1]]), flush=True)
    print(table(rows))
    print(f"all: cuDNN {sum(float(row[-2]) for row in rows[1:]):.2f} ms")


if __name__ == "__main__":
    main()
