"""Runs on the machines of a Ray cluster, a task for each; one whose machine is lost goes on elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from regrow.core.extras import check_installed
from regrow.lab.config import Config, parent_id
from regrow.lab.run.folder import InUse, RunFolder
from regrow.lab.run.loop import Options, Progress
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.cluster_worker import Files, Mailbox, read_files, work, write_files
from regrow.lab.sweep.job import job_of
from regrow.lab.sweep.outcome import Ending
from regrow.lab.sweep.progress import Board

_MOST_LOSSES = 3
"""A run that is lost more often than that is to blame itself."""
_PAUSE = 0.2


@contextmanager
def connected(place: str) -> Iterator[Any]:
    """Ray: "ray" is the cluster that is there, or else this machine alone; "ray://HOST:PORT" is one elsewhere."""
    if place != "ray" and not place.startswith("ray://"):
        raise ValueError(f"runs can be trained on ray or ray://HOST:PORT, got {place!r}")
    check_installed("ray", "a sweep on Ray", "ray")
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(None if place == "ray" else place, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            raise ValueError(f"no Ray cluster answers at {place}: {error}") from None
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def device_of_cluster(ray: Any, device: str) -> str:
    """What `auto` is there."""
    return ("cuda" if ray.cluster_resources().get("GPU") else "cpu") if device == "auto" else device


def train_on_ray(
    backlog: Backlog, options: Options, at_once: int | None, should_stop: Callable[[], bool], *, ray: Any
) -> None:
    """Train what is in the backlog, a task for each run; `at_once` of them share a GPU."""
    with _Crew(ray, backlog.root.resolve(), options, at_once, backlog.board) as crew:
        while crew.going or crew.lost or (backlog and not should_stop()):
            while crew.has_room() and not should_stop() and (config := crew.next(backlog)):
                crew.start(config, backlog.branches_of(config))
            time.sleep(_PAUSE)
            crew.listen()
            for run, ending in crew.ended():
                backlog.ended(run, ending)
            if should_stop():
                crew.stop()


class _Crew:
    """The tasks in flight, and what they send."""

    def __init__(self, ray: Any, root: Path, options: Options, at_once: int | None, board: Board) -> None:
        self.going: dict[Any, Config] = {}
        self.lost: list[Config] = []
        self._ray, self._root, self._options, self._board = ray, root, options, board
        self._needs = {"num_cpus": options.threads or 1, "num_gpus": 0.0}
        if options.device.startswith("cuda"):
            self._needs["num_gpus"] = 1 / (at_once or 1)
        if not self._room():
            cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
            raise ValueError(f"no machine of the cluster has {cpus} CPUs and {gpus:g} GPUs for a run; ask for less")
        self._mailbox: Any = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(Mailbox).remote()
        self._losses: Counter[str] = Counter()
        self._begun: set[str] = set()
        self._is_stopping = False
        self._elsewhere: dict[str, Ending] = {}
        self._locks: dict[str, ExitStack] = {}

    def __enter__(self) -> "_Crew":
        self._root.mkdir(parents=True, exist_ok=True)
        self._mark = _leave_mark(self._root)
        return self

    def __exit__(self, *error: object) -> None:
        (self._root / self._mark).unlink(missing_ok=True)
        for lock in self._locks.values():
            lock.close()

    def has_room(self) -> bool:
        return len(self.going) < self._room()

    def next(self, backlog: Backlog) -> Config | None:
        """Those that were lost come first."""
        return self.lost.pop(0) if self.lost else backlog.take()

    def start(self, config: Config, branches: tuple[Config, ...]) -> None:
        job = job_of(config, branches, self._root, self._options)
        runs = [config.id, *filter(None, [parent_id(config)])]
        files = self._ray.put(read_files(self._root, runs))  # in a list it stays where it is until it is asked for
        task = self._ray.remote(max_retries=0, **self._needs)(work)
        self.going[task.remote(job, self._mark, self._mailbox, [files])] = config

    def listen(self) -> None:
        """Show how far runs are, and keep what those send that do not see our folder."""
        going = {config.id for config in self.going.values()}
        for run, what in self._ray.get(self._mailbox.collect.remote()):
            if not isinstance(what, Progress):
                self._keep(run, what)
            elif run in going:  # and has not been lost since it said so
                self._begun.add(run)
                self._board.update(run, what)

    def ended(self) -> Iterator[tuple[str, Ending]]:
        """Runs that have come to an end; those that were lost begin again."""
        ready, _ = self._ray.wait(list(self.going), num_returns=len(self.going), timeout=0) if self.going else ([], [])
        if ready:
            self.listen()  # what they said at last
        for task in ready:
            config = self.going.pop(task)
            if ending := self._ending(task, config):
                self._locks.pop(config.id, ExitStack()).close()
                yield config.id, self._elsewhere.pop(config.id, ending)

    def stop(self) -> None:
        """Ask, once, those that train to save and stop; those that wait for a machine need not begin."""
        if not self._is_stopping:
            self._is_stopping = True
            self._ray.get(self._mailbox.stop.remote())
            for task, config in self.going.items():
                if config.id not in self._begun:
                    self._ray.cancel(task)
            for config in self.lost:
                self.going[self._ray.put(Ending("stopped", "stopped; run it again to go on"))] = config
            self.lost.clear()

    def _ending(self, task: Any, config: Config) -> Ending | None:
        try:
            ending: Ending = self._ray.get(task)
            return ending
        except self._ray.exceptions.TaskCancelledError:
            return Ending("stopped", "stopped before it began")
        except self._ray.exceptions.RayTaskError as error:
            return Ending("failed", str(error))
        except self._ray.exceptions.RayError as error:
            self._losses[config.id] += 1
            if self._is_stopping:
                return Ending("stopped", "lost while it was to stop; run it again to go on")
            if self._losses[config.id] > _MOST_LOSSES:
                return Ending("failed", f"lost {self._losses[config.id]} times, at last as {type(error).__name__}")
            self._board.say(f"{config.id}  lost ({type(error).__name__}); it goes on from its last checkpoint")
            self.lost.append(config)
            return None

    def _room(self) -> int:
        """How many runs the machines that are there could train at a time."""
        cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
        there = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        of_cpus = [int(own.get("CPU", 0) // cpus) for own in there]
        of_gpus = [int(own.get("GPU", 0) / gpus) if gpus else num for own, num in zip(there, of_cpus, strict=True)]
        return sum(map(min, of_cpus, of_gpus))

    def _keep(self, run: str, files: Files) -> None:
        try:
            if run not in self._locks:
                self._locks[run] = ExitStack()
                self._locks[run].enter_context(RunFolder(self._root / run).lock())
            if run not in self._elsewhere:
                write_files(self._root, files)
        except InUse as error:
            self._elsewhere[run] = Ending("elsewhere", str(error))


def _leave_mark(root: Path) -> str:
    name = f".on-ray-{token_hex(8)}"
    (root / name).touch()
    return name
