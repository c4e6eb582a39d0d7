"""The same benchmark with the library as it was at another revision."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


@contextmanager
def checkout_of(revision: str, benchmark: str) -> Iterator[Path]:
    """The folder of a revision's files, in which a benchmark is that of today."""
    git = ["git", "-C", str(HERE.parent), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder).resolve() / "checkout"
        subprocess.run([*git, "add", "--quiet", "--detach", str(checkout), revision], check=True)
        try:
            for name in (benchmark, Path(__file__).name):
                shutil.copy(HERE / name, checkout / "benchmarks" / name)
            yield checkout
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def paths_of(checkout: Path) -> dict[str, str]:
    """The environment of a process that imports the library from there."""
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}
