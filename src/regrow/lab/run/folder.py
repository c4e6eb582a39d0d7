"""The folder of a run: what is in it, and how it is read and written.

config.json            the frozen config
metrics.csv            one line per epoch: losses, accuracies, learning rate, time
layers.csv             active weights of every sparse layer, at the start and after each epoch
history.csv            one line per rewiring: threshold, and what every layer lost and got
initial_weights.safetensors, initial_topology.safetensors    as drawn, before masking; where weights were allowed
final_weights.safetensors, final_topology.safetensors
summary.json           the result and its provenance: a run that has one is finished
checkpoint.pt          where a run that was stopped goes on
lock                   held by the process that trains
"""

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regrow.files.atomic import remove_leftovers, write_bytes
from regrow.files.checksum import check_metadata, check_tensors, sealed
from regrow.lab.config import Config, imports, read_config
from regrow.lab.config.component import Settings

FORMAT = 1
METRICS = (
    "epoch",
    "step",
    "seconds",
    "lr",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "active",
    "sparsity",
)
Row = dict[str, float]
_ANEW = "remove the folder to train the run anew"


class BadRun(ValueError):
    """A run folder that cannot be used, with the file that is to blame."""


class InUse(BadRun):
    """The folder of a run that another process is training."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, by name."""

    path: Path

    def file(self, name: str) -> Path:
        return self.path / name

    @property
    def is_finished(self) -> bool:
        return self.file("summary.json").exists()

    def has_finished(self, config: Config) -> bool:
        """Whether this run has finished here; a damaged folder, or that of another run, has not."""
        try:
            return self.summary() is not None and self.config() == config
        except BadRun:
            return False

    def check(self, config: Config) -> None:
        """Refuse the folder of another run."""
        if not self.file("config.json").exists():
            return
        if (found := self.config()) != config:
            raise BadRun(f"{self.file('config.json')} belongs to another run, {found.id}; use another folder")
        if not self.is_finished and (name := imports.changed(self.imports())):
            raise BadRun(
                f"{self.path} was begun with {name}, which has changed since or is gone; bring it back, or move the "
                "folder away to begin anew"
            )

    def claim(self, config: Config) -> None:
        """Make the folder that of this run."""
        made: Settings = {"format": FORMAT, "id": config.id, "config": config.settings()}
        self.write_json("config.json", made | ({"imports": imports.brought()} if imports.brought() else {}))

    def imports(self) -> dict[str, str]:
        """What was imported when the run began, with digests of files."""
        return dict(self.read_json("config.json").get("imports", {}))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder against other processes; a lock whose holder died is free, and what it half wrote goes.

        A folder in which nothing came to be goes as well.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self.file("lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_there = os.path.samestat(os.fstat(file.fileno()), self.file("lock").stat())
            except OSError:
                is_there = False
            if not is_there:  # or its holder is just removing it
                raise InUse(f"another process is training in {self.path}; wait for it or stop it")
            remove_leftovers(self.path)
            try:
                yield
            finally:
                self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] == ["lock"]:
                self.file("lock").unlink()
                self.path.rmdir()

    def config(self) -> Config:
        saved = self.read_json("config.json")
        try:
            if not isinstance(saved["config"], dict):
                raise TypeError("its settings are no table")
            return read_config(saved["config"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            others = " ".join(f"--import {name}" for name in saved.get("imports", {}))
            hint = f"; it was made with regrow {others}" if others else ""
            raise BadRun(f"{self.file('config.json')} cannot be used: {error}{hint}") from None

    def summary(self) -> Settings | None:
        """The result, once there is one."""
        if not self.is_finished:
            return None
        summary = self.read_json("summary.json")
        for name in ("accuracy", "epochs", "steps", "seconds"):
            if not isinstance(summary.get(name), (int, float)):
                raise BadRun(f"{self.file('summary.json')} tells no {name}; {_ANEW}")
        return summary

    def read_json(self, name: str) -> Settings:
        path = self.file(name)
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            raise BadRun(f"{self.path} has no {name}; it is not the folder of a run") from None
        except (ValueError, RecursionError) as error:
            raise BadRun(f"{path} is damaged ({error}); move it away to go on without it") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else None
            raise BadRun(f"{path} has format {found}, this version of regrow reads format {FORMAT}")
        return content

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Whatever is written to a folder goes this way."""
        write_bytes(self.file(name), content)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, f"{json.dumps(content, indent=1)}\n".encode())

    def remove(self, name: str) -> None:
        self.file(name).unlink(missing_ok=True)

    def read_table(self, name: str) -> list[Row]:
        """A CSV file of numbers; an empty field is left out of its row. No file is no rows."""
        path = self.file(name)
        if not path.exists():
            return []
        try:
            text = path.read_text()
            if not text.endswith("\n"):
                raise ValueError("it breaks off")
            lines = list(csv.DictReader(io.StringIO(text), strict=True))
            return [_numbers(line) for line in lines]
        except (ValueError, csv.Error) as error:
            raise BadRun(f"{path} is damaged ({error}); move it away to go on without it") from None

    def write_table(self, name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
        self.write(name, text.getvalue().encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save

        # Copies, as tied weights are one tensor under two names, which this format refuses.
        stored = {
            key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()
        }
        self.write(f"{name}.safetensors", save(stored, sealed({}, stored)))

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self.file(f"{name}.safetensors")
        try:
            content = path.read_bytes()
            tensors = load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            if metadata := header.get("__metadata__"):  # the first versions wrote none
                check_metadata(metadata)
                check_tensors(metadata, tensors)
            return tensors
        except FileNotFoundError:
            raise BadRun(f"{self.path} has no {path.name}; is the run finished?") from None
        except (SafetensorError, ValueError) as error:
            raise BadRun(f"{path} is damaged ({error})") from None


@dataclass(frozen=True)
class Run:
    """A run as it is on disk, for looking at. `summary` is None while it is not finished."""

    config: Config
    summary: Settings | None
    metrics: list[Row]
    layers: list[Row]
    history: list[Row]


def read_run(path: Path) -> Run:
    folder = RunFolder(path)
    config, summary = folder.config(), folder.summary()
    metrics, layers, history = (folder.read_table(f"{name}.csv") for name in ("metrics", "layers", "history"))
    if summary and len(metrics) != summary["epochs"]:
        lost = f"{len(metrics)} epochs of {summary['epochs']} are left"
        raise BadRun(f"{folder.file('metrics.csv')} is damaged: {lost}; {_ANEW}")
    return Run(config, summary, metrics, layers, history)


def find_run(named: str, root: Path) -> Path:
    """The folder of a run, told by its path, by its id, or by a part of the id that no other run below `root` has."""
    for path in (Path(named), root / named):
        if path.is_dir():
            return path
    found = sorted(file.parent for file in root.glob("**/config.json") if named in file.parent.name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadRun(f"there is no run {named!r} below {root}; give its folder, its id or a part of it")
    shown = ", ".join(str(path.relative_to(root)) for path in found[:3]) + (", ..." if len(found) > 3 else "")
    raise BadRun(f"{len(found)} runs below {root} have {named!r} in their id, say more of it: {shown}")


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs in and below some folders, and a sentence for each that cannot be read."""
    folders = sorted(
        {file.parent for path in paths for file in [*path.glob("config.json"), *path.glob("**/config.json")]}
    )
    return read_runs(folders)


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in some folders, and a sentence for each that cannot be read."""
    runs, problems = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except BadRun as error:
            problems.append(str(error))
    return runs, problems


def _numbers(line: Mapping[str | None, Any]) -> Row:
    if None in line or None in line.values():
        raise ValueError("a line has not as many fields as the header")
    return {str(key): float(value) for key, value in line.items() if value != ""}


def bring_again(root: Path) -> None:
    """Import what runs under a folder were begun with, so that they go on without its being said again.

    What cannot be imported any more keeps no other run from training; one that needs it will miss it.
    """
    folders = [RunFolder(path.parent) for path in sorted(root.glob("*/config.json"))]
    for folder in folders:
        with suppress(BadRun):
            for name in [] if folder.is_finished else folder.imports():
                with suppress(Exception):
                    imports.bring(name)
