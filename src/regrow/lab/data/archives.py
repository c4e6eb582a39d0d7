"""Files by name, wherever they lie: in a folder, a tar or a zip."""

import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

Read = Callable[[], bytes]


def files_in(path: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """What the group of a pattern finds in the names of files below a folder or in an archive, and their content."""
    for name, read in _all_in(path):
        found = wanted.search(name)
        if found:
            yield found[1], read()


def _all_in(path: Path) -> Iterator[tuple[str, Read]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield file.relative_to(path.parent).as_posix(), file.read_bytes
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for name in packed.namelist():
                yield name, partial(packed.read, name)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, partial(_extract, tar, member)
    else:
        raise OSError(f"{path} is neither a folder nor a tar nor a zip")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()
