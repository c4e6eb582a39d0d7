"""Train a network with ten billion weight positions on a machine with 24 GB of memory.

    python examples/bigger_than_memory.py            # 784-100000-100000-10 on MNIST, minutes on two cores
    python examples/bigger_than_memory.py --quick    # 784-2000-2000-10 on made-up pictures, seconds

Dense, its weights, gradients and momentum would take 121 GB. Here one position in a thousand has a weight, and nothing
else exists: the model is built on the meta device, where tensors have shapes but no memory, and `storage="packed"`
makes the active weights alone real. DSR moves them while they train.
"""

import argparse
import resource
import sys
from itertools import chain, count, islice
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regrow
from regrow.lab.data import load

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="a small network on data that need not be fetched")
parser.add_argument("--width", type=int, help="units in each of the two hidden layers")
parser.add_argument("--sparsity", type=float)
parser.add_argument("--steps", type=int, default=150)
arguments = parser.parse_args()
width = arguments.width or (2_000 if arguments.quick else 100_000)
sparsity = arguments.sparsity or (0.98 if arguments.quick else 0.999)
data = load("synthetic" if arguments.quick else "mnist", device="cpu")  # fetched if it is not there yet
num_inputs = data.train_images[0].numel()


def draw(name: str, shape: tuple[int, ...], count: int, generator: torch.Generator) -> Tensor:
    """First weights of one size everywhere, since DSR compares them across layers; BatchNorm makes up for the scale."""
    return torch.randn(count, generator=generator)


with torch.device("meta"):
    model = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(num_inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, data.num_classes, bias=False), nn.BatchNorm1d(data.num_classes)),
    )
optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, arguments.steps)
method = regrow.DSR(sparsity=sparsity, prune=0.02, threshold=0.025, period=40, distribution="er")
sparse = regrow.attach(model, optimizer, method, storage=regrow.Packed(init=draw), seed=0)
num_positions = sum(layer.shape[0] * layer.shape[1] for layer in sparse.layers)
print(sparse.summary())


@torch.no_grad()
def accuracy(num_images: int) -> float:
    """The fraction of some test images that the network gets right, after which it trains on."""
    model.eval()
    batches = islice(data.evaluation_batches(100, device=data.device), num_images // 100)
    right = [(model(images).argmax(1) == labels).float().mean() for images, labels in batches]
    model.train()
    return float(torch.stack(right).mean())


def peak_memory() -> float:
    """The most memory this process has ever had, in GB; macOS counts in bytes, others in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


epochs = (data.training_batches(epoch, 0, 100, device=data.device) for epoch in count())
begin, times = perf_counter(), []
for step, (images, labels) in enumerate(islice(chain.from_iterable(epochs), arguments.steps), 1):
    before = perf_counter()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    times.append(perf_counter() - before)
    if step % 25 == 0:
        print(
            f"step {step:4}  loss {loss:.3f}  accuracy {accuracy(1000):.1%} of 1000  {median(times):.2f} s a step"
            f"  {sum(sum(r.grown.values()) for r in sparse.history):,} weights moved  {perf_counter() - begin:.0f} s",
            flush=True,
        )

print(f"test accuracy {accuracy(data.num_test):.2%}, after {perf_counter() - begin:.0f} s")
print(f"{sparse.active:,} weights in {num_positions:,} positions, {len(sparse.history)} rewirings")
dense = 12 * num_positions / 1e9
print(f"peak memory of this process {peak_memory():.2f} GB; weights, gradients and momentum, dense: {dense:.2f} GB")
