"""Train a sparse network, write it as one small file, and use that file without an optimizer and without dense weights.

    python examples/deploy.py            # 784-1024-1024-10 on MNIST, a minute on two cores
    python examples/deploy.py --quick    # 784-64-64-10 on made-up pictures, seconds

The second half is all that a program needs that only uses the network: it builds the model on the meta device, where
it takes no memory, and `regrow.load(..., storage="packed")` makes the active weights real. Pictures are then told one
at a time, as a service gets them, and in batches, beside the same file loaded as a dense network.
"""

import argparse
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regrow
from regrow.lab.data import load

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="a small network on data that need not be fetched")
parser.add_argument("--sparsity", type=float)
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=Path, default=Path("deployed.safetensors"))
arguments = parser.parse_args()
width = 64 if arguments.quick else 1024
sparsity = arguments.sparsity or (0.8 if arguments.quick else 0.95)
num_steps = arguments.steps or (200 if arguments.quick else 2_000)
data = load("synthetic" if arguments.quick else "mnist", device="cpu")  # fetched if it is not there yet


def build() -> nn.Module:
    """The network, which is not in the file: only what it has learnt is."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The fraction of the test images that a network gets right."""
    batches = data.evaluation_batches(100, device=data.device)
    return float(torch.cat([model(images).argmax(1) == labels for images, labels in batches]).float().mean())


# Where it is trained

torch.manual_seed(0)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, num_steps)
method = regrow.DSR(sparsity=sparsity, period=num_steps // 20, until=3 * num_steps // 4)
sparse = regrow.attach(model, optimizer, method, storage="packed", rescale="density", seed=0)
epochs = (data.training_batches(epoch, 0, 100, device=data.device) for epoch in count())
for images, labels in islice(chain.from_iterable(epochs), num_steps):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
trained = accuracy(model.eval())
regrow.save(arguments.out, model, sparse)
num_positions = sum(layer.shape[0] * layer.shape[1] for layer in sparse.layers)
print(f"trained: {trained:.2%} of the test images, {sparse.active:,} of {num_positions:,} weights")


# Where it is used

with torch.device("meta"):
    packed, dense = build(), build()
regrow.load(arguments.out, packed, storage="packed")
regrow.load(arguments.out, dense)
dense.eval()


@torch.no_grad()
def milliseconds(model: nn.Module, images: Tensor) -> float:
    """How long a network takes for a batch."""
    times = []
    for _ in range(50):
        begin = perf_counter()
        model(images)
        times.append(1000 * (perf_counter() - begin))
    return median(times)


some, _ = next(iter(data.evaluation_batches(64, device=data.device)))
print(f"the file: {arguments.out.stat().st_size / 1e3:,.0f} KB")
for name, model in {"packed": packed, "dense": dense}.items():
    one, many = milliseconds(model, some[:1]), milliseconds(model, some)
    print(f"{name}: {accuracy(model):.2%} of the test images, {one:.2f} ms for one and {many:.2f} ms for 64 at a time")
