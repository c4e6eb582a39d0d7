"""Training one run, from its config to its finished folder: read top to bottom."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.lab.config import Config
from regrow.lab.config.component import Settings
from regrow.lab.data import Data, NamedData
from regrow.lab.run import provenance
from regrow.lab.run.branches import hand_on
from regrow.lab.run.checkpoints import read_checkpoint, save_checkpoint, write_tables
from regrow.lab.run.compile import describe_kernels
from regrow.lab.run.folder import FORMAT, RunFolder
from regrow.lab.run.ranks import ALONE, Ranks
from regrow.lab.run.spread import whole
from regrow.lab.run.start import begin, build_model
from regrow.lab.run.state import Training
from regrow.lab.run.steps import choose_steps
from regrow.size import Size, count_flops, size_of, training_bytes


class Stopped(RuntimeError):
    """A run was asked to stop and did, after saving where it was."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; loss and score are those of the last whole epoch, None in the first."""

    step: int
    num_steps: int
    epoch: int
    num_epochs: int
    loss: float | None
    score: float | None


def _tell_nobody(progress: Progress) -> None:
    """With a name, unlike a lambda, so that options can be sent to other processes."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Options:
    """How to train, none of which changes the result: where, how often to save, whom to tell, when to stop.

    The number of threads, and whether the network is compiled, can change the last bits; a run that goes on does as
    when it began. `branches`: runs that begin as this one does, and are given its state where their ways part.
    `ranks`: the processes that train a run together; how many they are can change as much as the order of data.
    `judged_only`: ids of runs of which nobody wants the weights, which are not written then.
    """

    device: str = "cpu"
    threads: int | None = None
    compiles: bool = False
    save_every: float = 30.0
    branches: tuple[Config, ...] = ()
    judged_only: frozenset[str] = frozenset()
    ranks: Ranks = ALONE
    on_progress: Callable[[Progress], object] = _tell_nobody
    should_stop: Callable[[], bool] = _never

    def keeps(self, config: Config) -> bool:
        """Whether the weights of a run are kept."""
        return config.id not in self.judged_only


def train(config: Config, root: Path, options: Options) -> None:
    """Train a run in its folder under `root`; one that was interrupted goes on, one that is finished is left alone."""
    threads = torch.get_num_threads()
    try:
        for _ in on_own_stream(train_by_steps(config, root, options), options.device):
            pass
    finally:
        torch.set_num_threads(threads)  # a run that goes on may have taken its own


def train_by_steps(config: Config, root: Path, options: Options) -> Iterator[None]:
    """The same, with a pause after every step, so that several runs can take turns."""
    ranks, folder = options.ranks, options.ranks.folder(root / config.id)
    with ExitStack() as stack:
        ranks.together(lambda: stack.enter_context(folder.lock()))
        ranks.together(lambda: folder.check(config))
        if not ranks.told(lambda: folder.is_finished):
            yield from _train(config, folder, options)


def on_own_stream(steps: Iterator[None], device: str) -> Iterator[None]:
    """Take steps on a stream of their own where the device has streams; a graph cannot be captured on the main one."""
    if not device.startswith("cuda"):
        yield from steps
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    while True:
        with torch.cuda.stream(stream):
            try:
                next(steps)
            except StopIteration:
                return
        yield


def _begin_or_go_on(config: Config, folder: RunFolder, options: Options) -> tuple[Training, Settings]:
    """The run where it begins or goes on, in a folder that is its own, and what it was made with so far."""
    ranks = options.ranks
    saved = ranks.told(lambda: read_checkpoint(folder, config))
    threads = saved["threads"] if saved else options.threads
    if threads:
        torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True  # or convolutions would add up in another order each time
    device = torch.device(options.device)
    made_now = provenance.collect(device) | ranks.provenance
    made_with = provenance.joined(saved.get("made_with", {}) if saved else {}, made_now)
    data = config.data.for_run(ranks.in_turn(lambda: _data(config.data, device)), config)
    beginning = ranks.together(lambda: begin(config, data, folder.path.parent))
    initial_weights = _copied(beginning.model) if options.keeps(config) and not saved else {}
    is_compiled = (saved["is_compiled"] if saved else options.compiles) and not ranks.is_joined
    training = ranks.together(lambda: Training(config, data, device, beginning, is_compiled, ranks))
    ranks.together(partial(_open_folder, folder, training, initial_weights))
    if saved:
        ranks.together(partial(training.load, saved))
    return training, made_with


def _train(config: Config, folder: RunFolder, options: Options) -> Iterator[None]:
    ranks, (training, made_with) = options.ranks, _begin_or_go_on(config, folder, options)
    is_time_to_tell, is_time_to_note, is_time_to_save = _Every(0.2), _Every(1.0), _Every(options.save_every)
    began = time.monotonic() - training.seconds
    steps = choose_steps(training)
    while training.step < training.num_steps:
        first = training.step - training.epoch * training.steps_per_epoch
        if first == 0:
            hand_on(training, folder, options.branches, made_with)
        steps.begin_epoch(first)
        for _ in range(first, min(training.steps_per_epoch, training.num_steps - training.step + first)):
            steps.step()
            training.seconds = time.monotonic() - began
            if is_time_to_tell():
                options.on_progress(_progress(training))
            is_to_stop, is_to_save = ranks.any(options.should_stop(), is_time_to_save())
            if is_to_stop or is_to_save:
                ranks.together(lambda: save_checkpoint(folder, config, training, made_with))
            if is_to_stop:
                raise Stopped(f"stopped at step {training.step} of {training.num_steps}; run it again to go on")
            yield
        tested = steps.evaluate()
        yield  # waits are short when the others have their tests on the way, too
        ranks.together(partial(training.finish_epoch, *training.total(tested).read()))
        training.seconds = time.monotonic() - began
        if is_time_to_note():
            write_tables(folder, training)
        options.on_progress(_progress(training))
    ranks.together(lambda: _finish(folder, training, made_with, options.keeps(config)))


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _open_folder(folder: RunFolder, training: Training, initial_weights: dict[str, Tensor]) -> None:
    """Make it this run's, and keep what the run begins with, if it does begin and that is wanted."""
    masks = whole(training.sparse.masks())
    folder.claim(training.config)
    training.note_layers()  # which a run that goes on forgets for what was saved
    if initial_weights:
        folder.write_tensors("initial_weights", initial_weights)
        folder.write_tensors("initial_topology", masks)


@cache
def _data(data: NamedData, device: torch.device) -> Data:
    """Runs in one process share their data."""
    return data.open(device)


def _finish(folder: RunFolder, training: Training, made_with: Settings, keeps: bool) -> None:
    """Write what the run ended with; of what is told, sizes are those of the network as it was trained."""
    masks = whole(training.sparse.masks())
    is_sparse = training.sparse.target < sum(mask.numel() for mask in masks.values())
    model = build_model(training.config, training.data) if training.ranks.shards else training.model
    size, num_bytes = size_of(model, masks if is_sparse else {}), training_bytes(training.sparse)
    if training.config.storage == "packed":
        training.sparse.detach()  # dense weights again, as they are read everywhere
    write_tables(folder, training)
    if keeps:
        folder.write_tensors("final_weights", whole(training.model.state_dict()))
        folder.write_tensors("final_topology", masks)
    flops = count_flops(model, training.data.image_shape, masks)
    folder.write_json("summary.json", _summary(training, size, flops, num_bytes, made_with))
    folder.remove("checkpoint.pt")


def _summary(training: Training, size: Size, flops: int, num_bytes: int, made_with: Settings) -> Settings:
    return {
        "format": FORMAT,
        "id": training.config.id,
        "accuracy": training.metrics[-1]["test_accuracy"],
        "loss": training.metrics[-1]["test_loss"],
        **_other_score(training),
        "epochs": training.epoch,
        "steps": training.step,
        "seconds": round(training.seconds, 3),
        "size": {**asdict(size), "parameters": size.parameters, "bits": size.bits},
        "flops": flops,
        "layers": [
            {"name": layer.name, "shape": list(layer.shape), "active": layer.active, "sparsity": layer.sparsity}
            for layer in training.sparse.layers
        ],
        "storage": training.sparse.method.storage or training.config.storage,
        "training_bytes": num_bytes,
        "provenance": {
            **made_with,
            "compiled": training.is_compiled,
            "kernels": describe_kernels(training.device, training.is_compiled, training.config.precision),
            "finished": provenance.now(),
        },
    }


def _other_score(training: Training) -> dict[str, float | None]:
    """What the run is judged by, if that is not its accuracy."""
    score = training.config.data.score
    return {} if score.per_loss is None else {score.key: score.of(training.metrics[-1])}


def _progress(training: Training) -> Progress:
    last = training.metrics[-1] if training.metrics else {}
    return Progress(
        training.step,
        training.num_steps,
        training.epoch,
        training.num_epochs,
        last.get("train_loss"),
        training.config.data.score.of(last),
    )


class _Every:
    """Says yes when some seconds have passed since it last did."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        is_time = now - self._last >= self._seconds
        if is_time:
            self._last = now
        return is_time
