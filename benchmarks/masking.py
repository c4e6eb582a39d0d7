"""What masking a layer's gradient takes: by its bits, as dense storage does, beside choosing by the mask.

    python -m benchmarks.masking [--threads 1] [--sizes 100 300 1024 4096]

Microseconds for a square layer of float32 at .9, medians of blocks that take turns. Without a GPU: there kernels of our
own mask many layers at once.
"""

import argparse

import torch

import regrow
from benchmarks.measure import interleaved, table

REPEATS, AT_ONCE = 40, 20


def measure(size: int) -> list[str]:
    layer = torch.nn.Linear(size, size, bias=False)
    sparse = regrow.attach(layer, torch.optim.SGD(layer.parameters(), lr=0.1), regrow.Static(sparsity=0.9))
    (mask,), zero = sparse.masks().values(), torch.zeros(())
    gradient = torch.randn(size, size)
    layer.weight.grad = gradient.clone()

    def by_bits() -> None:
        for _ in range(AT_ONCE):
            sparse.storage.mask_gradients()

    def by_choosing() -> None:
        for _ in range(AT_ONCE):
            torch.where(mask, gradient, zero, out=gradient)

    sides = {"by bits": (lambda: None, by_bits), "by choosing": (lambda: None, by_choosing)}
    taken = interleaved(sides, torch.device("cpu"), REPEATS)
    assert torch.equal(layer.weight.grad, gradient)
    bits, choosing = (1000 * taken[name] / AT_ONCE for name in sides)
    return [f"{size} x {size}", f"{bits:.1f}", f"{choosing:.1f}", f"{choosing / bits:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 300, 1024, 4096])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [["layer", "by bits, us", "by choosing, us", "times as fast"]]
    print(table(rows + [measure(size) for size in arguments.sizes]))


if __name__ == "__main__":
    main()
