"""Runs on the synthetic set that train in a fraction of a second."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regrow.lab.config import Config, make_config
from regrow.lab.config.paper import merge
from regrow.lab.run.folder import read_run
from regrow.lab.run.loop import Options, Stopped, train

SMALL = {"data": "synthetic", "epochs": 2, "batch_size": 200, "method": {"name": "DSR", "sparsity": 0.9}}
SAME = ("initial_weights", "initial_topology", "final_weights", "final_topology")


def small(**settings: Any) -> Config:
    """A config that trains in a fraction of a second: 10 steps per epoch, rewired every 4."""
    config = merge(SMALL, settings)
    if config["method"]["name"] in ("DSR", "SET"):
        config = merge({"method": {"period": 4}}, config)
    return make_config(config)


def stop_after(step: int, config: Config, root: Path) -> None:
    """Train for some steps, and stop as if asked to."""
    steps = iter(range(1, 1000))
    with pytest.raises(Stopped):
        train(config, root, Options(threads=1, should_stop=lambda: next(steps) == step))


def assert_same_result(one: Path, other: Path) -> None:
    """Bit for bit, but for the time it took."""
    for name in SAME:
        a, b = load_file(one / f"{name}.safetensors"), load_file(other / f"{name}.safetensors")
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    first, second = read_run(one), read_run(other)
    assert [{**row, "seconds": 0} for row in first.metrics] == [{**row, "seconds": 0} for row in second.metrics]
    assert first.layers == second.layers
    assert first.history == second.history
    for run in (first, second):
        assert run.summary is not None
        run.summary.pop("seconds")
        run.summary.pop("provenance")
    assert first.summary == second.summary
