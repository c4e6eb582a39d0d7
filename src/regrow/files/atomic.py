"""Files that are either the old ones or the new ones, whatever happens while they are written."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import BinaryIO, TypeVar

_BESIDE = re.compile(r"\.regrow\.[0-9a-f]{16}")
_BESIDE_BEFORE = re.compile(r"\..+\.\d+")  # what the first versions called it
_LONG = 3600.0  # seconds; nobody writes to a file as seldom as that
_MOST_TIMES = 100  # there may be file systems that number files anew whenever they are asked
T = TypeVar("T")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in place; if that fails, `path` is as it was.

    A file that is replaced leaves its permissions to the new one; through a link it is what the link points at.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".regrow.{token_hex(8)}")  # no other thread, process or machine has the same
    _remove_abandoned(target.parent)
    try:
        with beside.open("xb") as file:
            if target.is_file():
                beside.chmod(S_IMODE(target.stat().st_mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise OSError(error.errno, f"{why}: {path} was not written and is as it was") from error
        raise


def read_steadily(path: Path, read: Callable[[], T]) -> T:
    """What `read` finds in a file, all of it in the same one, even if another takes its place in the meantime."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    for _ in range(_MOST_TIMES):
        with path.open("rb") as held:  # as long as it is open no other file has its number
            try:
                found = read()
            except Exception:
                if _is_at(held, path):
                    raise
            else:
                if _is_at(held, path):
                    return found
    return read()


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed had only half written, where nobody else can be writing."""
    for path in folder.iterdir():
        if (_BESIDE.fullmatch(path.name) or _BESIDE_BEFORE.fullmatch(path.name)) and path.is_file():
            path.unlink()


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    write_atomically(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def _remove_abandoned(folder: Path) -> None:
    """The same where somebody may: only what nobody has touched for long."""
    for path in _half_written(folder):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LONG:
                path.unlink()


def _half_written(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (Path(entry) for entry in entries if _BESIDE.fullmatch(entry.name))


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
