"""A training script of one's own, made sparse: AdamW, cosine, clipping, an average, and a checkpoint to go on from.

    python examples/own_script.py            # a small ResNet on Fashion-MNIST, some minutes on two cores
    python examples/own_script.py --quick    # on made-up pictures, seconds

Lines that regrow adds end with `# regrow`. Stop it at any time and give the same command again: it goes on from the
last checkpoint, to the bits that it would have come to.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regrow  # regrow
from regrow.lab.data import load

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="a smaller network on data that need not be fetched")
parser.add_argument("--sparsity", type=float, default=0.9)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--stop-after", type=int, help="stop after so many epochs, as if somebody had pressed Ctrl-C")
parser.add_argument("--out", type=Path, default=Path("own_script"))
arguments = parser.parse_args()
width, steps_per_epoch = (8, 20) if arguments.quick else (32, 200)
num_steps = arguments.epochs * steps_per_epoch
data = load("synthetic" if arguments.quick else "fashion_mnist", device="cpu")  # fetched if it is not there yet


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.shortcut = nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The activated sum."""
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        out: Tensor = (inner + self.shortcut(x)).relu()
        return out


torch.manual_seed(0)
model = nn.Sequential()
model.stem = nn.Conv2d(1, width, 3, padding=1)
model.blocks = nn.Sequential(Block(width, width, 2), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
model.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
model.head = nn.Linear(4 * width, data.num_classes)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)

method = regrow.RigL(sparsity=arguments.sparsity, period=num_steps // 20, until=3 * num_steps // 4)  # regrow
sparse = regrow.attach(model, optimizer, method, exclude=["stem", "head"], seed=0)  # regrow
average = regrow.Average(model, sparse, decay=0.9)  # regrow
parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "sparse": sparse, "average": average}

arguments.out.mkdir(parents=True, exist_ok=True)
checkpoint, first_epoch = arguments.out / "checkpoint.pt", 0
if checkpoint.exists():  # all of it after attaching; where weights are restored before, there is attach(..., resume=)
    saved = torch.load(checkpoint, weights_only=True)
    first_epoch = saved.pop("epoch")
    for name, state in saved.items():
        parts[name].load_state_dict(state)
    print(f"goes on after epoch {first_epoch}")


@torch.no_grad()
def accuracy() -> float:
    """The fraction of the test images that the network gets right."""
    model.eval()
    batches = data.evaluation_batches(500, device=data.device)
    right = torch.cat([model(images).argmax(1) == labels for images, labels in batches])
    model.train()
    return float(right.float().mean())


for epoch in range(first_epoch, arguments.stop_after or arguments.epochs):
    batches = data.training_batches(epoch, 0, 100, device=data.device)
    for images, labels in islice(batches, steps_per_epoch):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        sparse.mask_gradients()  # regrow: so that the norm is that of the gradients which are used
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        average.update()  # regrow
    torch.save({"epoch": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, checkpoint)
    moved = sum(sum(record.grown.values()) for record in sparse.history)
    print(f"epoch {epoch + 1}  loss {loss.item():.3f}  accuracy {accuracy():.2%}  {moved:,} weights moved so far")

print(sparse.summary())
with average.applied(model):
    print(f"accuracy of the average {accuracy():.2%}")
    regrow.save(arguments.out / "model.safetensors", model, sparse)  # regrow
size = (arguments.out / "model.safetensors").stat().st_size
print(f"the file: {size / 1e3:,.1f} KB, dense {4 * sum(p.numel() for p in model.parameters()) / 1e3:,.1f}")
