"""Runs side by side on a CPU, each in a process of its own."""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from regrow.lab.run.loop import Options, Progress
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.job import Job, job_of
from regrow.lab.sweep.outcome import Ending
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.signals import stop_on_signals


def train_in_processes(backlog: Backlog, options: Options, jobs: int | None, should_stop: Callable[[], bool]) -> None:
    """Train what is in the backlog, `jobs` runs at a time."""
    running: dict[Connection, _Worker] = {}
    while running or (backlog and not should_stop()):
        while len(running) < (jobs or 1) and not should_stop() and (config := backlog.take()):
            worker = _Worker(job_of(config, backlog.branches_of(config), backlog.root, options))
            running[worker.connection] = worker
        for ready in wait(list(running), timeout=0.2):
            assert isinstance(ready, Connection)
            ending = running[ready].listen(backlog.board)
            if ending is not None:
                backlog.ended(running.pop(ready).id, ending)
        if should_stop():
            for worker in running.values():
                worker.stop()


class _Worker:
    """A process that trains one run, and the line to it."""

    def __init__(self, job: Job) -> None:
        self.id = job.run
        self._said: Ending | None = None
        self._has_begun = self._told_to_stop = False
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(job, other_end))
        resource_tracker.ensure_running()  # or the first worker would start it, which lets signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: the parent decides on a Ctrl-C
        self._process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other_end.close()

    def listen(self, board: Board) -> Ending | None:
        """Take one message; how the run ended, if it did."""
        try:
            message: Any = self.connection.recv()
        except EOFError:
            self._process.join()
            if self._told_to_stop and not self._has_begun:
                silent = Ending("stopped", "stopped before it began")
            else:
                silent = Ending("failed", f"died (exit code {self._process.exitcode})")
            return self._said or silent
        if isinstance(message, Progress):
            self._has_begun = True
            board.update(self.id, message)
        else:
            self._said = message
        return None

    def stop(self) -> None:
        """Ask it, once, to save and stop."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self._process.terminate()


def _work(job: Job, line: Connection) -> None:
    """What a worker does: train, and tell. A signal to a whole sweep reaches it twice: by itself and by its parent."""
    with stop_on_signals(signal.SIGTERM, signal.SIGHUP, second_counts=False) as should_stop:
        parent_is_gone = False

        def tell(progress: Progress) -> None:
            nonlocal parent_is_gone
            try:
                line.send(progress)
            except OSError:
                parent_is_gone = True

        ending = job.train(job.root, tell, lambda: parent_is_gone or should_stop())
        with suppress(OSError):  # nobody is left to be told
            line.send(ending)
