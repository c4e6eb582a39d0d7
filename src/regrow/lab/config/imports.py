"""Components and methods of other people: files and modules, imported here and wherever a run goes on."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

_BROUGHT: dict[str, str] = {}


def bring(name: str, beside: Path = Path()) -> None:
    """Import a file, named from some folder, or a module; its components and methods are known from then on."""
    if not name.endswith(".py"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"there is no module {error.name!r} to import; a file ends in .py") from None
        _BROUGHT.setdefault(name, "")
        return
    path = (beside / Path(name).expanduser()).resolve()
    if str(path) in _BROUGHT:
        return
    if not path.is_file():
        raise ValueError(f"there is no file {path} to import")
    module = f"imported_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[module]
        raise
    _BROUGHT[str(path)] = digest(path)


def brought() -> dict[str, str]:
    """What was imported so far, with the digests of files."""
    return dict(_BROUGHT)


def changed(recorded: Mapping[str, str]) -> str | None:
    """The first file of those recorded that is not what it was, or not there any more."""
    for name, was in recorded.items():
        if was and (not Path(name).is_file() or digest(Path(name)) != was):
            return name
    return None


def digest(path: Path) -> str:
    """What tells a file's content from another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
