"""Runs what is tested in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_gpu_kernels_compute_what_they_should_where_there_is_no_gpu():
    pytest.importorskip("triton")
    tests = Path(__file__).parent / "interpreted_kernels.py"
    command = [sys.executable, "-m", "pytest", str(tests), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
