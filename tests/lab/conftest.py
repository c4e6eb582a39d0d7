"""What tests of the lab share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import small

from regrow.lab.run.loop import Options, train


@pytest.fixture
def run_small(tmp_path: Path) -> Callable[..., Path]:
    """Train a small run and give its folder."""

    def run(options: Options | None = None, **settings: Any) -> Path:
        config = small(**settings)
        train(config, tmp_path, options or Options(threads=1))
        return tmp_path / config.id

    return run
