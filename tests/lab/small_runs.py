"""Runs on the synthetic set that train in a fraction of a second."""

from typing import Any

from regrow.lab.config import Config, make_config
from regrow.lab.paper import merge

SMALL = {"data": "synthetic", "epochs": 2, "batch_size": 200, "method": {"name": "DSR", "sparsity": 0.9}}


def small(**settings: Any) -> Config:
    """A config that trains in a fraction of a second: 10 steps per epoch, rewired every 4."""
    config = merge(SMALL, settings)
    if config["method"]["name"] in ("DSR", "SET"):
        config = merge({"method": {"period": 4}}, config)
    return make_config(config)
