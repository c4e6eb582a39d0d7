"""Many runs, some at a time, each in a process of its own; one that fails does not stop the rest."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from regrow.lab.config import Config, parent_of, read_config
from regrow.lab.data import FetchError
from regrow.lab.progress import Board
from regrow.lab.runs import RunFolder
from regrow.lab.signals import stop_on_signals
from regrow.lab.train import Options, Progress, Stopped, train
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


def sweep(configs: Sequence[Config], root: Path, options: Options, jobs: int, board: Board) -> Outcome:
    """Train all runs that are not finished, `jobs` at a time, the longest first."""
    outcome = Outcome()
    waiting = []
    for config in with_parents(configs):
        is_finished = RunFolder(root / config.id).is_finished
        outcome.skipped.append(config.id) if is_finished else waiting.append(config)
    waiting.sort(key=lambda config: -config.num_epochs)
    running: dict[Connection, _Worker] = {}
    with stop_on_signals() as should_stop:
        while running or (waiting and not should_stop()):
            _drop_orphans(waiting, outcome)
            for config in [one for one in waiting if _is_ready(one, root)][: jobs - len(running)]:
                if not should_stop():
                    waiting.remove(config)
                    worker = _Worker(config, root, options)
                    running[worker.connection] = worker
                    board.begin(config.id)
            for ready in wait(list(running), timeout=0.2):
                assert isinstance(ready, Connection)
                if running[ready].listen(board, outcome):
                    running.pop(ready).process.join()
            if should_stop():
                for worker in running.values():
                    worker.stop()
    outcome.stopped += [config.id for config in waiting]
    return outcome


def train_here(config: Config, root: Path, options: Options, board: Board) -> str:
    """Train a run, and before it those it starts from, in this process; says how that ended."""
    how = ""
    for one in with_parents([config]):
        board.begin(one.id)
        with stop_on_signals() as should_stop:
            told = replace(options, on_progress=partial(board.update, one.id), should_stop=should_stop)
            how = describe_end(partial(train, one, root, told), RunFolder(root / one.id))
        board.end(one.id, how)
        if not how.startswith("done"):
            break
    return how


def _is_ready(config: Config, root: Path) -> bool:
    parent = parent_of(config)
    return parent is None or RunFolder(root / parent.id).is_finished


def _drop_orphans(waiting: list[Config], outcome: Outcome) -> None:
    """What starts from a run that failed cannot start."""
    for config in list(waiting):
        parent = parent_of(config)
        if parent and parent.id in outcome.failed:
            waiting.remove(config)
            outcome.failed[config.id] = f"not started, because {parent.id} failed"


class _Worker:
    """A process that trains one run, and the line to it."""

    def __init__(self, config: Config, root: Path, options: Options) -> None:
        self.id = config.id
        self._said: str | None = None
        self._told_to_stop = False
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe(duplex=False)
        plain = replace(options, on_progress=_nobody, should_stop=_never)
        self.process = context.Process(target=_work, args=(config.settings(), root, plain, other_end))
        self.process.start()
        other_end.close()

    def listen(self, board: Board, outcome: Outcome) -> bool:
        """Take one message; whether it was the last."""
        try:
            message: Any = self.connection.recv()
        except EOFError:
            message = self._said or f"died (exit code {self._exit_code()})"
            self._end(message, board, outcome)
            return True
        if isinstance(message, Progress):
            board.update(self.id, message)
        else:
            self._said = message
        return False

    def stop(self) -> None:
        """Ask it, once, to save and stop."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self.process.terminate()

    def _exit_code(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def _end(self, message: str, board: Board, outcome: Outcome) -> None:
        if message.startswith("done"):
            outcome.done.append(self.id)
        elif message.startswith("stopped"):
            outcome.stopped.append(self.id)
        else:
            outcome.failed[self.id] = message
            message = f"failed: {message}"
        board.end(self.id, message)


def _work(settings: dict[str, Any], root: Path, options: Options, line: Connection) -> None:
    """What a worker process does: train, and tell."""
    config = read_config(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches it too, but the parent decides
    with stop_on_signals(signal.SIGTERM) as should_stop:
        parent_is_gone = False

        def tell(progress: Progress) -> None:
            nonlocal parent_is_gone
            try:
                line.send(progress)
            except OSError:
                parent_is_gone = True

        options = replace(options, on_progress=tell, should_stop=lambda: parent_is_gone or should_stop())
        line.send(describe_end(partial(train, config, root, options), RunFolder(root / config.id)))


def describe_end(act: Callable[[], object], folder: RunFolder) -> str:
    """Train, and say in a sentence how it ended."""
    try:
        act()
    except Stopped as stopped:
        return str(stopped)
    except KNOWN_TROUBLE as error:
        return str(error)
    summary = folder.summary()
    assert summary is not None
    return f"done: {summary['accuracy']:.2f} % in {summary['seconds']:.0f} s"


def _nobody(progress: Progress) -> None:
    """Stands in for functions that cannot be sent to another process."""


def _never() -> bool:
    return False
