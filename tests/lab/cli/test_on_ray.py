"""What is said where there is no Ray, and no place of that name."""

from pathlib import Path

import pytest
from command_line import regrow

from regrow.core import extras


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras, "find_spec", lambda package: None if package == "ray" else package)
    code, told = regrow("sweep experiments/demo.toml --on ray", tmp_path)
    assert code == 1
    assert 'a sweep on Ray needs ray, which is not installed; run pip install "regrow[ray]"' in told


def test_another_place_is_refused(tmp_path: Path):
    code, told = regrow("sweep experiments/demo.toml --on slurm", tmp_path)
    assert code == 1
    assert "ray or ray://HOST:PORT, got 'slurm'" in told
