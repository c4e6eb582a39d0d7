"""What the lab's captured step costs beside one that is written by hand for one network.

    python -m benchmarks.captured [--model gpt --model vit --model resnet_50_small] [--lanes 1] [--compile]

By hand: batch, forward, backward, clipping where it is said and AdamW in one CUDA graph, the cosine filled in before
each step; nothing is counted, masked or kept. The lab does the same with `Dense`, and with SET at .9, which masks. All
sides train the same network in bfloat16 on made-up data on the device, take turns in blocks, and medians count. With
more lanes each side has as many, on streams of their own. Without a GPU the steps are plain ones, to try the command.
"""

import argparse
from collections.abc import Callable
from math import cos, pi
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.measure import table
from regrow.lab.bench import Lane, open_lane, seconds_per_step
from regrow.lab.config import Config, make_config
from regrow.lab.data import Data, synthesize
from regrow.lab.data.on_device import OnDevice
from regrow.lab.data.text import Text
from regrow.lab.models.model import Shape
from regrow.lab.run.compile import compiled
from regrow.lab.run.start import build_model
from regrow.lab.run.steps import capture

PEAK, NUM_STEPS = 1e-3, 10_000
SMALL = Shape((3, 64, 64), 200)  # as Tiny-ImageNet has them
COMMON = {
    "optimizer": {"name": "AdamW", "weight_decay": 0.1},
    "learning_rate": {"name": "cosine", "peak": PEAK},
    "precision": "bfloat16",
    "max_steps": NUM_STEPS,
}
TASKS = {
    "gpt": {"model": "gpt", "data": "enwik8", "batch_size": 64, "clip": 1.0},
    "vit": {"model": "vit", "data": "synthetic_colour", "batch_size": 256},
    "resnet_50_small": {"model": "resnet_50_small", "data": "synthetic_colour", "batch_size": 256},
    "tiny": {"model": {"name": "gpt", "width": 16, "depth": 1, "heads": 2, "context": 16}, "data": "enwik8"},
}


def config_of(task: str, method: dict[str, object]) -> Config:
    return make_config({"batch_size": 8, **TASKS[task], **COMMON, "method": method})


def data_for(config: Config, device: torch.device) -> Data:
    """Made-up data of the usual size, a few batches of it."""
    usual = SMALL if str(config.model) == "resnet_50_small" else config.model.usual
    shape, num_train = usual.image_shape, 20 * config.batch_size
    if len(shape) == 1:
        text = torch.randint(256, (1_000_000,), dtype=torch.uint8, device=device)
        return Text("made-up", text[:900_000], text[900_000:], shape[0], num_train)
    channels, height, width = shape
    image_shape = (channels, height, width)
    return synthesize(
        image_shape=image_shape, num_classes=usual.num_classes, num_train=num_train, num_test=10, device=device
    )


class ByHand:
    """A loop for one network, as one writes it for that alone."""

    def __init__(self, config: Config, data: OnDevice, device: torch.device, is_compiled: bool) -> None:
        self.device, self.batch_size, self.clip = device, config.batch_size, config.clip
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(self.stream):
            memory = torch.channels_last if device.type == "cuda" else torch.contiguous_format
            self.model = build_model(config, data).to(device).to(memory_format=memory)
            self.forward = compiled(self._loss) if is_compiled else self._loss
            fast = device.type == "cuda"
            self.rate = torch.tensor(PEAK, device=device)
            settings = {"weight_decay": 0.1, "fused": fast or None, "capturable": fast}
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate if fast else PEAK, **settings)
            batch, self.draws = compiled(data.batch) if is_compiled else data.batch, data.draws(0, 0)
            self.batch: Callable[..., tuple[Tensor, Tensor]] = batch
            self.order = data.order(0, 0).view(-1, self.batch_size)
            self.number, self.num_taken = torch.zeros(1, dtype=torch.int64, device=device), 0
            self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """One step."""
        with torch.cuda.stream(self.stream):
            if self.num_taken % len(self.order) == 0:
                self.number.fill_(0)
            self.rate.fill_(PEAK * (1 + cos(pi * self.num_taken / NUM_STEPS)) / 2)
            if self.stream is None or self.num_taken < 3:
                self._step()
            else:
                self.graph = self.graph or capture(self._step, self.device)
                self.graph.replay()
            self.num_taken += 1

    def _step(self) -> None:
        inputs, targets = self.batch(self.order.index_select(0, self.number).flatten(), self.draws)
        self.forward(inputs, targets).backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if inputs.ndim == 4 and self.device.type == "cuda":
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(inputs)
            return cross_entropy(logits.flatten(0, -2), targets.flatten())


def compare(task: str, arguments: argparse.Namespace) -> list[str]:
    """A row: milliseconds by hand, and how many times as long the lab takes."""
    device = torch.device(arguments.device)
    dense = config_of(task, {"name": "Dense"})
    sparse = config_of(task, {"name": "SET", "sparsity": 0.9, "until": 0})
    data = data_for(dense, device)
    assert isinstance(data, OnDevice)
    sides: list[list[Lane | ByHand]] = [[], [], []]
    for _ in range(arguments.lanes):
        sides[0].append(ByHand(dense, data, device, arguments.compile))
        for lanes, config in ((sides[1], dense), (sides[2], sparse)):
            lanes.append(open_lane(config, data, device, is_compiled=arguments.compile, is_captured=True))
    num_blocks = arguments.blocks + 1
    blocks = [[seconds_per_step(own, arguments.steps, 1)[0] for own in sides] for _ in range(num_blocks)][1:]
    by_hand, *of_lab = (1000 * median(block[i] for block in blocks) for i in range(3))
    return [task, f"{by_hand:.3f}", *(f"{ms / by_hand:.3f}" for ms in of_lab)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=sorted(TASKS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=50, help="in each block")
    parser.add_argument("--blocks", type=int, default=6)
    arguments = parser.parse_args()
    rows = [["model", "by hand, ms", "lab, dense", "lab, SET .9"]]
    for task in arguments.model or ["gpt", "vit", "resnet_50_small"]:
        rows.append(compare(task, arguments))
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
