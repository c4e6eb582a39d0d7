"""Runs with a common beginning: one that stops rewiring early is, up to there, the one that goes on rewiring.

So the beginning is trained once, by the *trunk*. Where a *branch* leaves it, the branch is given the trunk's state, as
if it had been stopped there, and goes on like any run that was interrupted: to the same bits as if trained alone.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import floor

from regrow.lab.config import Config
from regrow.lab.config.component import Settings
from regrow.lab.run.checkpoints import save_checkpoint
from regrow.lab.run.folder import BadRun, RunFolder
from regrow.lab.run.state import Training
from regrow.methods.method import METHODS


def find_trunks(configs: Iterable[Config]) -> dict[str, str]:
    """Ids of runs that are branches of others of these, and of those others: which of their kind rewires longest."""
    alike: dict[str, list[Config]] = {}
    for config in configs:
        if METHODS[config.method_name].until_only_stops:
            rest = {key: value for key, value in config.method.items() if key != "until"}
            alike.setdefault(replace(config, method=rest).id, []).append(config)
    trunks: dict[str, str] = {}
    for runs in alike.values():
        trunk = max(runs, key=parting_epoch)
        branches = [run for run in runs if run is not trunk and 1 <= parting_epoch(run) < run.num_epochs]
        trunks |= {branch.id: trunk.id for branch in branches}
    return trunks


def parting_epoch(config: Config) -> int:
    """The whole epochs that a run has in common with one that rewires longer."""
    until = config.method.get("until")
    return config.num_epochs if until is None else floor(until * config.num_epochs / config.written_for)


def hand_on(training: Training, folder: RunFolder, branches: Sequence[Config], made_with: Settings) -> None:
    """At the end of an epoch, leave the state of a trunk to the branches that part here and have not begun."""
    for branch in branches:
        if parting_epoch(branch) == training.epoch:
            with suppress(BadRun, OSError):  # the branch will find out for itself what is wrong with its folder
                _leave(training, folder, branch, made_with)


def _leave(training: Training, folder: RunFolder, branch: Config, made_with: Settings) -> None:
    target = RunFolder(folder.path.parent / branch.id)
    with target.lock():
        target.check(branch)
        if target.is_finished or target.file("checkpoint.pt").exists():
            return
        target.claim(branch)
        for name in ("initial_weights", "initial_topology"):
            if folder.file(f"{name}.safetensors").exists():  # nobody may want them
                target.write_tensors(name, folder.read_tensors(name))
        beginning = f"epochs 1 to {training.epoch} are those of {training.config.id}"
        save_checkpoint(target, branch, training, {**made_with, "beginning": beginning})
