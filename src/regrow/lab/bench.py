"""How fast the lab is, and what rewiring costs in it: ratios within one run, after a warm-up, medians of blocks."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, stdev

import torch

from regrow.lab.config import Config, make_config
from regrow.lab.config.component import Settings
from regrow.lab.data import Data, Dataset, synthesize
from regrow.lab.models import PAPER, read_model
from regrow.lab.run.start import begin
from regrow.lab.run.state import Training
from regrow.lab.run.steps import EagerSteps, Steps, choose_steps

METHODS = ("Static", "SET", "DSR", "RigL", "DeepR")


@dataclass
class Lane:
    """A training that is only timed."""

    training: Training
    steps: Steps
    stream: torch.cuda.Stream | None

    def run(self) -> None:
        """One step; at the end of an epoch the next one begins."""
        with torch.cuda.stream(self.stream):
            within = self.training.step % self.training.steps_per_epoch
            if within == 0:
                self.steps.begin_epoch(0)
            self.steps.step()


def check_is_of_paper(model: str) -> None:
    """What is measured are the paper's schedules, on images of the size that it trained a network on."""
    if read_model(model).paper is None:
        raise ValueError(f"{model} is no network of the paper, whose schedule is measured; say {', '.join(PAPER)}")


def images_for(model: str, batch_size: int, num_batches: int, device: torch.device) -> Dataset:
    """Made-up images of the size that the paper trains a model on."""
    usual = read_model(model).usual
    channels, height, width = usual.image_shape
    return synthesize(
        image_shape=(channels, height, width),
        num_classes=usual.num_classes,
        num_train=batch_size * num_batches,
        num_test=10,
        augmentation="crop_flip" if height == 32 else "none",
        device=device,
    )


def open_lane(config: Config, data: Data, device: torch.device, *, is_compiled: bool, is_captured: bool) -> Lane:
    """A training on a stream of its own."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    torch.backends.cudnn.deterministic = is_captured  # as runs of the lab have it; a plain loop need not
    with torch.cuda.stream(stream):
        training = Training(config, data, device, begin(config, data, Path()), is_compiled)
        steps = choose_steps(training) if is_captured else EagerSteps(training)
    return Lane(training, steps, stream)


def seconds_per_step(lanes: Sequence[Lane], num_steps: int, num_blocks: int) -> list[float]:
    """Time of a step of one lane, in blocks, while all lanes take turns."""
    blocks = []
    for _ in range(num_blocks):
        start = time.perf_counter()
        for _ in range(num_steps):
            for lane in lanes:
                lane.run()
        if lanes[0].stream is not None:
            torch.cuda.synchronize()
        blocks.append((time.perf_counter() - start) / num_steps / len(lanes))
    return blocks


@dataclass(frozen=True)
class Speed:
    """Seconds that one run takes for a step and for an epoch, in some way to train."""

    how: str
    step: float
    epoch: float


def bench_lab(
    model: str, device: torch.device, num_lanes: Sequence[int], num_steps: int, tell: Callable[[str], object]
) -> Iterator[Speed]:
    """The plain loop, and each thing the lab does to be faster, one after the other."""
    check_is_of_paper(model)
    config = make_config({"model": model, "method": "DSR", "sparsity": 0.9, "precision": _precision(device)})
    data = images_for(model, config.batch_size, 20, device)

    def measure(how: str, count: int, *, is_compiled: bool, is_captured: bool) -> Speed:
        tell(how)
        lanes = [
            open_lane(config, data, device, is_compiled=is_compiled, is_captured=is_captured) for _ in range(count)
        ]
        step = median(seconds_per_step(lanes, num_steps, num_blocks=4)[1:])
        return Speed(how, step, step * steps_per_epoch(model, config.batch_size))

    yield measure("plain loop", 1, is_compiled=False, is_captured=False)
    if device.type == "cuda":
        yield measure("captured", 1, is_compiled=False, is_captured=True)
        for count in num_lanes:
            yield measure(f"captured and compiled, {count} at once", count, is_compiled=True, is_captured=True)


@dataclass(frozen=True)
class Overhead:
    """What a method costs beside static sparse training, as ratios of step times.

    `quiet`: between rewirings. `busy`: with a rewiring every few steps. `average`: over the paper's whole schedule,
    which has far fewer of them. `rewiring`: seconds that one takes, as the difference of the two tells.
    """

    method: str
    quiet: float
    busy: float
    deviation: float
    rewiring: float
    average: float


def bench_overhead(
    model: str,
    device: torch.device,
    *,
    is_captured: bool,
    num_steps: int,
    num_blocks: int,
    tell: Callable[[str], object],
    methods: Sequence[str] = METHODS,
    num_lanes: int = 1,
    every: int = 20,
) -> Iterator[Overhead]:
    """Each method, without rewirings and with one `every` few steps, in blocks that alternate with static training."""
    check_is_of_paper(model)
    common = {"model": model, "sparsity": 0.9, "precision": _precision(device)}
    static = make_config({**common, "method": "Static"})
    data = images_for(model, static.batch_size, 4, device)

    def lanes_of(settings: Settings) -> list[Lane]:
        configs = [make_config({**common, **settings, "seed": seed}) for seed in range(num_lanes)]
        return [open_lane(c, data, device, is_compiled=is_captured, is_captured=is_captured) for c in configs]

    def compare(name: str) -> Overhead:
        tell(name)
        gc.collect()  # lanes hold themselves, and two sets of a large network's may not fit into the memory
        period = 1 if name == "DeepR" else every
        fields = {"name": name, "period": period, "until": None}
        sides = [
            lanes_of({"method": "Static"}),
            lanes_of({"method": {**fields, "until": 0}}),
            lanes_of({"method": fields}),
        ]
        blocks = [[seconds_per_step(lanes, num_steps, 1)[0] for lanes in sides] for _ in range(num_blocks + 1)][1:]
        alone, quiet, busy = (median(block[i] for block in blocks) for i in range(3))
        per_rewiring = (busy - quiet) * period
        rate = rewirings_per_step(make_config({**common, "method": name}), model)
        return Overhead(
            name,
            quiet / alone,
            busy / alone,
            stdev(block[2] / block[0] for block in blocks) if num_blocks > 1 else 0.0,
            per_rewiring,
            (quiet + rate * per_rewiring) / alone,
        )

    yield from map(compare, methods)


def steps_per_epoch(model: str, batch_size: int) -> int:
    """Of the data that the paper trains a model on."""
    return {"lenet_300_100": 60_000, "resnet_50": 1_281_167}.get(model, 50_000) // batch_size


def rewirings_per_step(config: Config, model: str) -> float:
    """How often the paper's schedule rewires, averaged over the whole training.

    >>> f"{1 / rewirings_per_step(make_config({'method': 'DSR', 'sparsity': 0.9}), 'lenet_300_100'):.0f}"
    '219'
    """
    per_epoch = steps_per_epoch(model, config.batch_size)
    method = config.make_method(per_epoch)
    num_steps = config.num_epochs * per_epoch
    return sum(method.is_due(step) for step in range(1, num_steps + 1)) / num_steps


def _precision(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"
