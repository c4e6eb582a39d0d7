"""Where the time of an epoch goes: the steps, what of them is input, the test, and what is written to disk.

    python -m benchmarks.epoch [--model resnet_50_small] [--batch 256] [--compile] [--data tiny_imagenet]
    python -m benchmarks.epoch --model wrn_28_2 --data cifar10 --batch 100 --width 0.25 --steps 5      # on a CPU

A run of the lab, whose parts are timed one by one, each until the device is done, after an epoch that warms up. Without
`--data` the images are made up, as many and as large as those of Tiny-ImageNet. `input` is choosing, augmenting and
normalizing an epoch's batches alone, as steps do it; `one batch` an epoch of steps on a batch that is there already.
What training waits for its input is at most what an epoch takes longer than that.
"""

import argparse
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.measure import seconds, table
from regrow.lab.bench import open_lane
from regrow.lab.config import make_config
from regrow.lab.data import Dataset, load, synthesize
from regrow.lab.run.checkpoints import save_checkpoint
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.steps import capture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet_50_small")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--data", help="a data set of the lab instead of made-up images")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--method", default="SET")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--epochs", type=int, default=2, help="of which medians are told")
    parser.add_argument("--steps", type=int, help="in each epoch, instead of all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(arguments.device)
    named = {"model": arguments.model, "width": arguments.width, "data": arguments.data or "tiny_imagenet"}
    precision = "bfloat16" if device.type == "cuda" else "float32"
    method = {"method": arguments.method, "sparsity": 0.9}
    config = make_config({**named, **method, "batch_size": arguments.batch, "epochs": 60, "precision": precision})
    data = load(arguments.data, device=device) if arguments.data else like_tiny_imagenet(device)
    lane = open_lane(config, data, device, is_compiled=arguments.compile, is_captured=True)
    training, steps = lane.training, lane.steps
    num_steps = arguments.steps or training.steps_per_epoch
    taken: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], object]) -> None:
        taken.setdefault(part, []).append(seconds(work, device))

    def several(work: Callable[[], object]) -> Callable[[], None]:
        return lambda: [work() for _ in range(num_steps)] and None

    with TemporaryDirectory() as scratch, torch.cuda.stream(lane.stream) if lane.stream else nullcontext():
        folder = RunFolder(Path(scratch) / config.id)
        folder.path.mkdir()
        folder.claim(config)
        for _ in range(arguments.epochs + 1):
            timed("order of the epoch", lambda: steps.begin_epoch(0))
            timed(f"{num_steps} steps", several(steps.step))
            timed("test", steps.evaluate)
            timed("what is noted", lambda: training.finish_epoch(0.0, 0.0))
            timed("a checkpoint", lambda: save_checkpoint(folder, config, training, {}))
        order = data.order(0, config.seed)[: arguments.batch]
        draws, batch = data.draws(0, config.seed), getattr(steps, "_batch", data.batch)
        inputs, targets = batch(order, draws)
        fixed = several(_replayed(lambda: training.update(inputs, targets), device))
        alone = several(_replayed(lambda: batch(order, draws), device))
        for _ in range(arguments.epochs + 1):
            timed("one batch", fixed)
            timed("input", alone)
    rows = [["part", "seconds"]] + [[part, f"{median(times[1:]):.3f}"] for part, times in taken.items()]
    print(table(rows))


def like_tiny_imagenet(device: torch.device) -> Dataset:
    return synthesize(
        image_shape=(3, 64, 64),
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
        augmentation="crop_flip",
        device=device,
    )


def _replayed(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """As a captured graph where there are graphs."""
    if device.type != "cuda":
        return work
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    return capture(work, device).replay


if __name__ == "__main__":
    main()
