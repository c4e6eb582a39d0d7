"""The folder where data sets are kept: filled from the first source that works, and only with checked files."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

from regrow.lab.data.sources import Progress, Source

if sys.platform != "win32":
    import fcntl

Check = str | Callable[[Path], bool]
"""What a file must be: its SHA-256, or what looks at one that was made here."""


class FetchError(RuntimeError):
    """No source could give the data set; the message says what was tried and what to do."""


def cache_root(root: Path | str | None = None) -> Path:
    """Where data sets are kept: `root`, or $REGROW_DATA, or ~/.cache/regrow."""
    return Path(root or os.environ.get("REGROW_DATA") or Path.home() / ".cache" / "regrow").expanduser()


def obtain(
    name: str,
    digests: Mapping[str, Check],
    sources: Sequence[Source],
    root: Path | str | None = None,
    progress: Progress | None = None,
    otherwise: str | None = None,
) -> Path:
    """The folder with the files of a data set, each checked against its SHA-256, fetched if need be.

    `otherwise`: what can be done where no source works.

    A file appears under its name only when all are whole: sources work in a folder of their own on the same
    file system, and checked files are moved from there. Several processes may ask at once; one fetches.
    """
    progress = progress or _quiet
    home = cache_root(root)
    folder = home / name
    if not what_is_wrong(folder, digests):
        return folder
    with _locked(_make_lock(home, name), lambda: progress(f"waiting for another download of {name}", 0, None)) as alone:
        wrong = what_is_wrong(folder, digests)  # somebody may have fetched while we waited
        if not wrong:
            return folder
        if alone:
            _sweep(home, name)
        failures = [f"the cache {folder} ({wrong})"]
        for source in sources:
            try:
                _fetch_from(source, folder, digests, progress)
                return folder
            except Exception as error:  # whatever went wrong here, the next source may work
                failures.append(f"{source.name} ({_reason(error)})")
    by_hand = f"put {', '.join(digests)} into {folder} yourself"
    raise FetchError(
        f"could not get {name}: tried {' and '.join(failures)}; go online and run `regrow data {name}`, "
        f"or {otherwise or by_hand}"
    )


def what_is_wrong(folder: Path, digests: Mapping[str, Check]) -> str | None:
    """The first thing that keeps a folder from being the data set, or None when all is well."""
    if not any((folder / file).is_file() for file in digests):
        return "nothing there"
    for file, digest in digests.items():
        if not (folder / file).is_file():
            return f"{file} is missing"
        if not (sha256(folder / file) == digest if isinstance(digest, str) else digest(folder / file)):
            return f"{file} is damaged"
    return None


def sha256(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_from(source: Source, folder: Path, digests: Mapping[str, Check], progress: Progress) -> None:
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as scratch:
        arrived = Path(scratch)
        source.get(arrived, progress)
        wrong = what_is_wrong(arrived, digests)
        if wrong:
            raise OSError("no file arrived" if wrong == "nothing there" else f"{wrong} as it arrived")
        folder.mkdir(exist_ok=True)
        for file in digests:
            os.replace(arrived / file, folder / file)


def _make_lock(home: Path, name: str) -> Path:
    lock = home / f".{name}.lock"
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise FetchError(
            f"cannot write to {home} ({_reason(error)}); set REGROW_DATA to a folder you may write to"
        ) from error
    return lock


def _sweep(home: Path, name: str) -> None:
    """Remove what a killed fetch left; to be called under the lock, when no other fetch is alive."""
    for left in home.glob(f".{name}-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold a lock that dies with its process; yields False where there are no locks, which costs only double work."""
    if sys.platform == "win32":
        yield False
        return
    with path.open("a") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    text = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).strip()
    return text if len(text) <= 160 else f"{text[:157]}..."


def _quiet(what: str, done: int, total: int | None) -> None:
    pass
