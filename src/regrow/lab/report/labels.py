"""What runs are called: runs that differ in more than seed, sparsity, length and, maybe, storage never share a label.

A label is the paper's name of the method, followed by everything in which the run departs from the paper's settings for
its network and method: in words where there are some, else as `key=value`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from regrow.lab.config import Config, Start, make_config, paper, spell_out
from regrow.lab.config.paper import merge
from regrow.methods.method import METHODS

NAMES = {
    "Dense": "Full dense",
    "Thin": "Thin dense",
    "Static": "Static",
    "Gradual": "Compressed",
    "Hashed": "HashedNet",
}
FAMILIES = ("Full dense", "Thin dense", "Static", "Compressed", "SET", "DeepR", "HashedNet", "DSR", "RigL", "SNFS")

_NOT_IN_A_LABEL = ("model", "data", "seed", "epochs", "max_steps", "method.name", "method.sparsity")
_IN_EPOCHS = ("method.until", "method.begin")  # the defaults of methods are steps and do not compare
_COUNT_OR_FRACTION = ("method.prune", "method.fraction")  # 1 is one unit, 1.0 is all of them
_ORDER = ("start", "start.rescale", "method.granularity", "method.scope", "stretch", "method.until")
_OTHER_RUN_MAY_SAY = ("model", "data", "seed", "epochs", "method.sparsity")


def family(config: Config) -> str:
    """The method's name in the paper.

    >>> family(make_config({"method": "Gradual", "sparsity": 0.9}))
    'Compressed'
    """
    name = "Thin" if config.is_thin else config.method_name
    return NAMES.get(name, name)


def family_rank(name: str) -> int:
    """The order of tables and legends: that of the paper, others last."""
    return FAMILIES.index(name) if name in FAMILIES else len(FAMILIES)


def experiment_title(config: Config) -> str:
    """
    >>> experiment_title(make_config({"model": "wrn_28_2", "method": "Dense"}))
    'WRN-28-2 on CIFAR-10'
    """
    return ", ".join(filter(None, [f"{config.model.title} on {config.data.title}", config.data.tested_on]))


def label(config: Config, without: Sequence[str] = ()) -> str:
    """What a run is called in tables and figures; `without` some of its departures, e.g. those all runs share.

    >>> label(make_config({"method": {"name": "DSR", "sparsity": 0.9, "granularity": "kernel"}}))
    'DSR, kernels'
    >>> label(make_config({"method": "Static", "sparsity": 0.9, "stretch": 1.0}))
    'Static, 1x'
    """
    parts = [text for text in departures(config).values() if text not in without]
    is_control = config.method_name == "Static" and config.start.topology in ("final", "counts")
    return ", ".join(parts if is_control else [family(config), *parts])


def departures(config: Config) -> dict[str, str]:
    """In what a run is not as the paper's of this network and method, in words, by the setting."""
    of_paper = partial(paper.settings_for, config.model.paper, config.method_name, config.is_thin)
    usual_run = paper_run(config, stretch=config.stretch)
    mine, usual = _flat(config), _flat(usual_run)
    for kind in ("optimizer", "learning_rate"):
        if getattr(config, kind).name != getattr(usual_run, kind).name or config.model.paper is None:
            usual = {key: value for key, value in usual.items() if not key.startswith(kind)} | _defaults(config, kind)
    if config.model.paper is not None:
        usual |= {"written_for": of_paper(config.stretch)["written_for"], "stretch": of_paper().get("stretch", 1.0)}
    changed = [key for key in {**mine, **usual} if mine.get(key) != usual.get(key)]
    changed.sort(key=lambda key: (_ORDER.index(key) if key in _ORDER else len(_ORDER), key))
    return {key: _in_words(key, mine.get(key), config) for key in changed}


def shared_departures(configs: Sequence[Config]) -> list[str]:
    """What all these runs depart in alike and what says nothing about a method, e.g. a precision: worth saying once."""
    about_methods = ("method.", "start", "stretch", "width")
    each = [
        {text for key, text in departures(config).items() if not key.startswith(about_methods)} for config in configs
    ]
    return sorted(set.intersection(*each)) if each else []


def paper_run(config: Config, **settings: Any) -> Config:
    """The run of the paper that this one is, or is a variation of: full length, its own sparsity and data."""
    told = config.settings()
    settings |= {"model": told["model"], "data": told["data"], "method": config.method_name}
    if config.model.paper is None:  # of which nothing else is known
        same = ("epochs", "max_steps", "batch_size", "optimizer", "learning_rate")
        settings |= {key: told[key] for key in same if told.get(key) is not None}
    settings["written_for"] = config.written_for  # so that points in time compare
    if "sparsity" in config.method:
        settings["sparsity"] = config.sparsity
    if config.is_thin:
        settings["width"] = "thin"
    return make_config(settings)


def _flat(config: Config) -> dict[str, Any]:
    """All settings that a label speaks of, by dotted keys, with the defaults of the method filled in."""
    tables = config.settings()
    start = _read_start(config)
    flat = {f"method.{f.name}": f.default for f in fields(METHODS[config.method_name])}
    flat |= dict.fromkeys(_IN_EPOCHS)
    flat |= {f"method.{key}": value for key, value in tables.pop("method").items()}
    for kind in ("optimizer", "learning_rate"):
        flat |= {f"{kind}.{key}": value for key, value in tables.pop(kind, {}).items()}
    flat |= {**tables, "start": start, "start.rescale": config.start.rescale}
    return {key: value for key, value in flat.items() if key not in _NOT_IN_A_LABEL}


def _defaults(config: Config, kind: str) -> dict[str, Any]:
    """What a component of a run would be if only its name had been said."""
    part = getattr(config, kind)
    departed = part.departures()
    return {f"{kind}.{key}": value for key, value in part.settings().items() if key not in ("name", *departed)}


def _read_start(config: Config) -> tuple[str, str, str]:
    start = config.start
    return start.topology, start.weights, _other_run(start, config)


def _other_run(start: Start, config: Config) -> str:
    """The run that another one starts from, by its label and by what it does not take over from that one."""
    if start.run is None or isinstance(start.run, str):
        return start.run or ""
    said = spell_out(start.run)
    told = config.settings()
    known = {"model": told["model"], "data": told["data"], "method": {"sparsity": config.sparsity}}
    if config.model.paper is None:
        same = ("epochs", "max_steps", "batch_size", "optimizer", "learning_rate")
        known |= {key: told[key] for key in same if told.get(key) is not None}
    other = make_config(merge(known, {key: value for key, value in said.items() if key not in ("seed", "epochs")}))
    own = {**said, **{f"method.{key}": value for key, value in said.get("method", {}).items()}}
    parts = [label(other), *(f"{key.split('.')[-1]}={own[key]}" for key in _OTHER_RUN_MAY_SAY if key in own)]
    return parts[0] if parts == [family(other)] else f"({', '.join(parts)})"


def _in_words(key: str, value: Any, config: Config) -> str:
    if key == "start":
        return _start_in_words(*value)
    if key == "start.rescale":
        return "first weights scaled"
    if key == "method.granularity":
        return f"{value}s"
    if key == "method.distribution" and isinstance(value, str):
        return value.upper() if value.startswith("er") else value
    if key == "method.scope" and value == "network":
        return "across layers"
    if key == "method.until" and value is not None:
        unit = "epoch" if config.max_steps is None else "step"
        return f"rewiring until {unit} {_plain(value)} of {_plain(config.written_for)}"
    if key == "method.until" and METHODS[config.method_name].until is None:
        return "rewiring to the end"
    if key == "stretch":
        return f"{_plain(value)}x"
    if key in ("precision", "storage", "optimizer.name", "learning_rate.name"):
        return str(value)
    text = str(value) if key in _COUNT_OR_FRACTION else _plain(value)
    table, _, name = key.rpartition(".")
    is_told_apart = table == "optimizer" and name in {f.name for f in fields(METHODS[config.method_name])}
    return f"{key if is_told_apart else name}={text}"


def _start_in_words(topology: str, weights: str, other: str) -> str:
    """
    >>> _start_in_words("final", "fresh", "DSR"), _start_in_words("counts", "fresh", "DSR")
    ('DSR topology, fresh weights', 'random topology, DSR counts')
    """
    of_other = f"{weights} weights" if weights == "fresh" else f"{weights} weights of {other}"
    if topology == "final":
        return f"{other} topology, {weights} weights"
    if topology == "counts":
        return f"random topology, {other} counts" + ("" if weights == "fresh" else f", {weights} weights")
    return f"largest weights kept, {of_other}" if topology == "magnitude" else f"random topology, {of_other}"


def _plain(value: Any) -> str:
    """A value so that different ones look different, whole numbers without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_plain(key)}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)
