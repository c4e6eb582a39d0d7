"""Files that are either the old ones or the new ones, whatever happens while they are written."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_BESIDE = re.compile(r"\..+\.\d+")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in place; if that fails, `path` is as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed had only half written."""
    for path in folder.iterdir():
        if _BESIDE.fullmatch(path.name) and path.is_file():
            path.unlink()


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))
