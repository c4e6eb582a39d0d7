"""Runs on the machines of a Ray cluster, a task for each; one whose machine is lost goes on elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

from regrow.core.extras import check_installed
from regrow.files.atomic import write_atomically
from regrow.lab.config import Config, imports, parent_id, read_config
from regrow.lab.config.paper import Settings
from regrow.lab.run.folder import InUse, RunFolder
from regrow.lab.run.loop import Options, Progress, train
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.outcome import Ending, how_it_ends
from regrow.lab.sweep.progress import Board

_MOST_LOSSES = 3
"""A run that is lost more often than that is to blame itself."""
_PAUSE = 0.2
Files = dict[str, bytes | None]
"""Contents by path below a folder of runs; None for a file that is no longer there."""


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
    backlog: Backlog,
    root: Path,
    options: Options,
    at_once: int | None,
    board: Board,
    should_stop: Callable[[], bool],
    *,
    ray: Any,
) -> None:
    """Train what is in the backlog, a task for each run; `at_once` of them share a GPU."""
    root = root.resolve()
    with _Crew(ray, root, options, at_once, board) as crew:
        while crew.going or crew.lost or (backlog and not should_stop()):
            while crew.has_room() and not should_stop() and (config := crew.next(backlog)):
                crew.start(config, backlog.branches_of(config))
            time.sleep(_PAUSE)
            crew.listen()
            for run, ending in crew.ended():
                backlog.ended(run, ending)
            if should_stop():
                crew.stop()


@dataclass(frozen=True)
class _Job:
    """All that a worker is told. `mark`: a file that is in the folder of runs if that is the driver's own."""

    settings: Settings
    imported: tuple[str, ...]
    root: Path
    mark: str
    options: Options


class _Crew:
    """The tasks in flight, and what they send."""

    def __init__(self, ray: Any, root: Path, options: Options, at_once: int | None, board: Board) -> None:
        self.going: dict[Any, Config] = {}
        self.lost: list[Config] = []
        self._ray, self._root, self._board = ray, root, board
        self._options = replace(options, on_progress=_nobody, should_stop=_never)
        self._needs = {"num_cpus": options.threads or 1, "num_gpus": 0.0}
        if options.device.startswith("cuda"):
            self._needs["num_gpus"] = 1 / (at_once or 1)
        if not self._room():
            cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
            raise ValueError(f"no machine of the cluster has {cpus} CPUs and {gpus:g} GPUs for a run; ask for less")
        self._mailbox: Any = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(_Mailbox).remote()
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
        options = replace(self._options, branches=branches)
        job = _Job(config.settings(), tuple(imports.brought()), self._root, self._mark, options)
        runs = [config.id, *filter(None, [parent_id(config)])]
        files = self._ray.put(_read(self._root, runs))  # in a list it stays where it is until it is asked for
        task = self._ray.remote(max_retries=0, **self._needs)(_work)
        self.going[task.remote(job, self._mailbox, [files])] = config

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
                _write(self._root, files)
        except InUse as error:
            self._elsewhere[run] = Ending("elsewhere", str(error))


class _Mailbox:
    """Between the workers and the driver, on the machine that the cluster hangs on."""

    def __init__(self) -> None:
        self._news: list[tuple[str, Progress | Files]] = []
        self._is_over = False

    def post(self, run: str, what: Progress | Files) -> bool:
        """Leave something; whether it is time to stop."""
        self._news.append((run, what))
        return self._is_over

    def collect(self) -> list[tuple[str, Progress | Files]]:
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        self._is_over = True


def _work(job: _Job, mailbox: Any, files: list[Any]) -> Ending:
    """What a worker does: train in the driver's folder, or where that is not to be seen in one of its own, and tell."""
    import ray

    for name in job.imported:
        imports.bring(name)
    config = read_config(job.settings)
    is_over = False

    def post(what: Progress | Files) -> None:
        nonlocal is_over
        try:
            is_over = ray.get(mailbox.post.remote(config.id, what))
        except ray.exceptions.RayError:
            is_over = True  # nobody is left to be told

    def train_in(root: Path, tell: Callable[[Progress], object]) -> Ending:
        options = replace(job.options, on_progress=tell, should_stop=lambda: is_over)
        return how_it_ends(partial(train, config, root, options), RunFolder(root / config.id))

    if (job.root / job.mark).exists():
        return train_in(job.root, post)
    with TemporaryDirectory(prefix="regrow-") as scratch:
        copy = _Copy(Path(scratch), ray.get(files[0]))

        def tell(progress: Progress) -> None:
            post(progress)
            if changes := copy.changes():
                post(changes)

        ending = train_in(copy.root, tell)
        post(copy.changes())
        return ending


class _Copy:
    """Folders of runs on another machine, and what has changed in them since it was last asked."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        _write(root, files)
        self._seen = self._look()

    def changes(self) -> Files:
        """What tells that a run is finished comes last."""
        now = self._look()
        changed = sorted((name for name in now if now[name] != self._seen.get(name)), key=_tells_of_the_end)
        gone = dict.fromkeys(self._seen.keys() - now.keys())
        self._seen = now
        return {name: (self.root / name).read_bytes() for name in changed} | gone

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {str(path.relative_to(self.root)): path.stat() for path in _files(self.root.iterdir())}
        return {name: (stat.st_mtime_ns, stat.st_ino) for name, stat in found.items()}


def _tells_of_the_end(name: str) -> bool:
    return name.endswith("summary.json")


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    """What is in the folders of runs, but for locks and what is only half written."""
    for folder in folders:
        with suppress(OSError):
            yield from (path for path in folder.iterdir() if path.name != "lock" and not path.name.startswith("."))


def _read(root: Path, runs: Iterable[str]) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in _files(root / run for run in runs)}


def _write(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]


def _leave_mark(root: Path) -> str:
    name = f".on-ray-{token_hex(8)}"
    (root / name).touch()
    return name


def _nobody(progress: Progress) -> None:
    """Stands in for functions of the driver."""


def _never() -> bool:
    return False
