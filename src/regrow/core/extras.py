"""Packages that not everybody needs: they come with an extra, which is named where one is missing."""

from importlib.util import find_spec


class MissingExtra(ImportError, ValueError):
    """A package is not installed: an ImportError by nature, and a ValueError like all that is refused."""


def check_installed(extra: str, what: str, *packages: str) -> None:
    """Refuse to begin what needs packages, by the names they are imported by, that an extra of regrow installs."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise MissingExtra(
            f'{what} needs {" and ".join(missing)}, which {are} not installed; run pip install "regrow[{extra}]"'
        )
