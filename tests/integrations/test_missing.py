"""Trainers are imported when their callback is, and named where they are not installed."""

import importlib
import subprocess
import sys

import pytest


def test_importing_regrow_imports_no_trainer():
    told = "import sys, regrow; print({'lightning', 'transformers', 'accelerate'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_missing_trainer_is_named_with_the_line_that_installs_it(trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, trainer, None)
    monkeypatch.delitem(sys.modules, f"regrow.integrations.{trainer}", raising=False)
    with pytest.raises(ImportError, match=rf'needs {trainer}, which is not .* run pip install "regrow\[{trainer}\]"'):
        importlib.import_module(f"regrow.integrations.{trainer}")
