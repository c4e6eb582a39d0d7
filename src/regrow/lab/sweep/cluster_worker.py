"""What a machine of a Ray cluster does for a sweep: train a run, and tell the driver of it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regrow.files.atomic import write_bytes
from regrow.lab.run.loop import Progress
from regrow.lab.sweep.job import Job
from regrow.lab.sweep.outcome import Ending

Files = dict[str, bytes | None]
"""Contents by path below a folder of runs; None for a file that is no longer there."""


class Mailbox:
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


def work(job: Job, mark: str, mailbox: Any, files: list[Any]) -> Ending:
    """What a worker does: train in the driver's folder, or where that is not to be seen in one of its own, and tell.

    `mark`: a file that is in the folder of runs if that is the driver's own.
    """
    import ray

    is_over = False

    def post(what: Progress | Files) -> None:
        nonlocal is_over
        try:
            is_over = ray.get(mailbox.post.remote(job.run, what))
        except ray.exceptions.RayError:
            is_over = True  # nobody is left to be told

    if (job.root / mark).exists():
        return job.train(job.root, post, lambda: is_over)
    with TemporaryDirectory(prefix="regrow-") as scratch:
        copy = _Copy(Path(scratch), ray.get(files[0]))

        def tell(progress: Progress) -> None:
            post(progress)
            if changes := copy.changes():
                post(changes)

        ending = job.train(copy.root, tell, lambda: is_over)
        post(copy.changes())
        return ending


class _Copy:
    """Folders of runs on another machine, and what has changed in them since it was last asked."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        write_files(root, files)
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


def read_files(root: Path, runs: Iterable[str]) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in _files(root / run for run in runs)}


def write_files(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            write_bytes(path, content)
