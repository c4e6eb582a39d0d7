"""A setting that departs from the usual, in words: "lr 0.05", "rewiring until epoch 50 of 100", "kernels"."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from regrow.lab.config import Config
from regrow.lab.config.schedule import is_schedule
from regrow.methods.method import METHODS

_COUNT_OR_FRACTION = ("method.prune", "method.fraction")  # 1 is one unit, 1.0 is all of them
_NAMES = ("precision", "storage", "optimizer.name", "learning_rate.name")  # whose value says what it is


def in_words(key: str, value: Any, config: Config) -> str:
    """What a label says of a setting, by its dotted key."""
    if key == "start":
        return _start(*value)
    if key == "start.rescale":
        return "first weights scaled"
    if key == "start.moments":
        return f"{value} moments"
    if key == "method.granularity":
        return f"{value}s"
    if key == "method.distribution" and isinstance(value, str):
        return value.upper() if value.startswith("er") else value
    if key == "method.scope" and value == "network":
        return "across layers"
    if key == "method.until" and value is not None:
        return f"rewiring until {_time(config)} {_plain(value)} of {_plain(config.written_for)}"
    if key == "method.until" and METHODS[config.method_name].until is None:
        return "rewiring to the end"
    if key == "stretch":
        return f"{_plain(value)}x"
    if key in _NAMES:
        return str(value)
    return f"{name_of(key, config)} {_value(key, value, config)}"


def not_departed(key: str, config: Config, whose: str) -> str:
    """What a label says of a run that is as usual where most others are not.

    >>> from regrow.lab.config import make_config
    >>> not_departed("optimizer.lr", make_config({"method": "DSR", "sparsity": 0.9}), "the paper's")
    "the paper's lr"
    """
    if key == "start.rescale":
        return "first weights as drawn"
    return f"{whose} {key.removesuffix('.name').replace('_', ' ') if key.endswith('.name') else name_of(key, config)}"


def name_of(key: str, config: Config | None = None) -> str:
    """The last part of a key, or all of it where the method of a run has a field of that name, too."""
    table, _, name = key.rpartition(".")
    taken = set() if config is None else {f.name for f in fields(METHODS[config.method_name])}
    is_told_apart = table == "optimizer" and name in taken
    return (key if is_told_apart else name).replace(".", " ").replace("_", " ")


def _time(config: Config) -> str:
    return "epoch" if config.max_steps is None else "step"


def _value(key: str, value: Any, config: Config) -> str:
    if key in _COUNT_OR_FRACTION:
        return str(value)
    return _over_time(value, _time(config)) if is_schedule(value) else _plain(value)


def _over_time(schedule: Mapping[Any, Any], unit: str) -> str:
    """
    >>> _over_time({0: 0.05}, "epoch"), _over_time({0: 0.1, 30: 0.01, 60: 0.001}, "epoch")
    ('0.05', '0.1 then 0.01 from epoch 30 then 0.001 from epoch 60')
    """
    told = [
        _plain(value) if float(first) == 0 else f"{_plain(value)} from {unit} {_plain(first)}"
        for first, value in schedule.items()
    ]
    return " then ".join(told)


def _plain(value: Any) -> str:
    """A value so that different ones look different, whole numbers without a point.

    >>> _plain(1.0), _plain((0.9, 0.95)), _plain({"fc1*": 0.5}), _plain(None), _plain(False)
    ('1', '0.9/0.95', '0.5 in fc1*', 'none', 'off')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping):
        return " and ".join(f"{_plain(inner)} in {_plain(key)}" for key, inner in value.items())
    return "/".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _start(topology: str, weights: str, other: str) -> str:
    """
    >>> _start("final", "fresh", "DSR"), _start("counts", "fresh", "DSR")
    ('DSR topology, fresh weights', 'random topology, DSR counts')
    """
    of_other = f"{weights} weights" if weights == "fresh" else f"{weights} weights of {other}"
    if topology == "final":
        return f"{other} topology, {weights} weights"
    if topology == "counts":
        return f"random topology, {other} counts" + ("" if weights == "fresh" else f", {weights} weights")
    return f"largest weights kept, {of_other}" if topology == "magnitude" else f"random topology, {of_other}"
