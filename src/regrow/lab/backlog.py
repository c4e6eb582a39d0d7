"""The runs of a sweep that are still to be trained, and what became of the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regrow.lab.config import Config, parent_id, parent_of
from regrow.lab.data import FetchError
from regrow.lab.progress import Board
from regrow.lab.runs import BadRun, RunFolder
from regrow.lab.train import Stopped
from regrow.lab.training import NotFinite

KNOWN_TROUBLE = (ValueError, TypeError, NotFinite, FetchError, OSError)
"""What a user can do something about: shown as a sentence, not as a traceback."""


@dataclass
class Outcome:
    """What became of the runs of a sweep, by id; `failed` says why."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


def with_parents(configs: Sequence[Config]) -> list[Config]:
    """The runs, and before each the one it starts from, once."""
    ordered: dict[str, Config] = {}
    for config in configs:
        parent = parent_of(config)
        for one in [*(with_parents([parent]) if parent else []), config]:
            ordered.setdefault(one.id, one)
    return list(ordered.values())


class Backlog:
    """Hands out runs, the longest first, each when the one it starts from is finished."""

    def __init__(self, configs: Sequence[Config], root: Path, board: Board) -> None:
        self.outcome = Outcome()
        self._board = board
        self._waiting: list[Config] = []
        for config in with_parents(configs):
            if RunFolder(root / config.id).has_finished(config):
                self.outcome.skipped.append(config.id)
            else:
                self._waiting.append(config)
        self._waiting.sort(key=lambda config: -config.num_epochs)
        self._unfinished = {config.id for config in self._waiting}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Config | None:
        """The next run that can start now."""
        ready = next((config for config in self._waiting if self._is_ready(config)), None)
        if ready:
            self._waiting.remove(ready)
            self._board.begin(ready.id)
        return ready

    def ended(self, run: str, how: str) -> None:
        """Note how a run ended, in the words of `describe_end`."""
        if how.startswith("done"):
            self.outcome.done.append(run)
            self._unfinished.discard(run)
        elif how.startswith("stopped"):
            self.outcome.stopped.append(run)
            self.outcome.stopped += self._drop_dependents(run)
        else:
            self.outcome.failed[run] = how
            for config in self._drop_dependents(run):
                self.outcome.failed[config] = f"not started, because {run} failed"
            how = f"failed: {how}"
        self._board.end(run, how)

    def close(self) -> Outcome:
        """What is still waiting was not begun."""
        self.outcome.stopped += [config.id for config in self._waiting]
        return self.outcome

    def _is_ready(self, config: Config) -> bool:
        """Whether the run it starts from is not one that this sweep has still to train."""
        return parent_id(config) not in self._unfinished

    def _drop_dependents(self, run: str) -> list[str]:
        """What starts from a run that did not finish, or from such a one, cannot start."""
        dropped = []
        for config in [config for config in self._waiting if parent_id(config) == run]:
            self._waiting.remove(config)
            dropped += [config.id, *self._drop_dependents(config.id)]
        return dropped


def describe_end(act: Callable[[], object], folder: RunFolder) -> str:
    """Train, and say in a sentence how it ended."""
    try:
        act()
    except (Stopped, *KNOWN_TROUBLE) as error:
        return str(error)
    return describe_result(folder)


def describe_result(folder: RunFolder) -> str:
    """A finished run in a sentence."""
    try:
        summary = folder.summary()
    except BadRun as error:
        return str(error)
    assert summary is not None
    return f"done: {summary['accuracy']:.2f} % in {summary['seconds']:.0f} s"
