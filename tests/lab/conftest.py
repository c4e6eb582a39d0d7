"""What tests of the lab share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_idx
from small_runs import small

from regrow.lab.config import imports
from regrow.lab.run.loop import Options, train


@pytest.fixture
def run_small(tmp_path: Path) -> Callable[..., Path]:
    """Train a small run and give its folder."""

    def run(options: Options | None = None, **settings: Any) -> Path:
        config = small(**settings)
        train(config, tmp_path, options or Options(threads=1))
        return tmp_path / config.id

    return run


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the data set toy_idx, which is known by that name."""
    folder = tmp_path / "cache" / "toy_idx"
    toy_idx.write_files(folder)
    monkeypatch.setenv("REGROW_DATA", str(folder.parent))
    imports.bring(toy_idx.__file__)
    return folder
