"""What a result was obtained with."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def collect(device: torch.device) -> dict[str, Any]:
    """Versions, device and revision of the source, to be asked for when a run begins: the source may change later."""
    return {
        "regrow": _version("regrow"),
        "revision": _revision(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "host": _processor(),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was made with that goes on elsewhere, or with another version.

    >>> joined({"torch": "2.11", "device": "cpu"}, {"torch": "2.13", "device": "cpu"})
    {'torch': '2.11, then 2.13', 'device': 'cpu'}
    """

    def both(key: str) -> Any:
        first, last = before.get(key, now[key]), now[key]
        is_same = first == last or str(first).endswith(f", then {last}")
        return first if is_same else f"{first or 'unknown'}, then {last or 'unknown'}"

    return {**before, **{key: both(key) for key in now}}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from source
        return None


def _revision() -> str | None:
    """The commit of the source, marked where it was changed since; REGROW_REVISION tells it for a copy."""
    told = os.environ.get("REGROW_REVISION")
    is_ours = _git("ls-files", "--error-unmatch", Path(__file__).name)  # not of a repository that happens to be around
    return told or (_git("describe", "--always", "--dirty", "--abbrev=12") if is_ours else None)


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
