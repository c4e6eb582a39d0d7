"""What runs are called: runs that differ in more than seed, sparsity, length and, maybe, storage never share a label.

A label is the paper's name of the method, followed by everything in which the run departs from the paper's settings for
its network and method, in words.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from regrow.lab.config import Config, Start, make_config, paper, spell_out
from regrow.lab.config.paper import merge
from regrow.lab.report.wording import in_words, not_departed
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
_OF_METHODS = ("method.", "stretch", "width")
_ORDER = ("start", "start.rescale", "start.moments", "method.granularity", "method.scope", "stretch", "method.until")
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


def label(config: Config, without: Sequence[str] = (), usual: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a run is called in tables and figures.

    `without` some of its departures, e.g. those all runs share. `usual`: departures of most runs, by the setting; a
    label says nothing of them, but where a run has not departed.

    >>> label(make_config({"method": {"name": "DSR", "sparsity": 0.9, "granularity": "kernel"}}))
    'DSR, kernels'
    >>> label(make_config({"method": "Static", "sparsity": 0.9, "stretch": 1.0}))
    'Static, 1x'
    >>> label(make_config({"method": "DSR", "sparsity": 0.9}), usual={"optimizer.lr": "lr 0.05"})
    "DSR, the paper's lr"
    """
    mine = departures(config)
    parts = [text for key, text in mine.items() if text not in without and usual.get(key) != text]
    parts += _kept(config, mine, usual)
    is_control = config.method_name == "Static" and config.start.topology in ("final", "counts")
    return ", ".join(parts if is_control else [family(config), *parts])


def _kept(config: Config, mine: Mapping[str, str], usual: Mapping[str, str]) -> list[str]:
    """In what a run is as usual where most are not; where it has another optimizer, nothing of its fields."""
    kinds = [kind for kind in ("optimizer", "learning_rate") if mine.get(f"{kind}.name") != usual.get(f"{kind}.name")]
    others = tuple(f"{kind}." for kind in kinds)
    lacking = [key for key in usual if key not in mine]
    return [
        not_departed(key, config, "default" if _is_default(key, config, mine) else "the paper's")
        for key in lacking
        if key.endswith(".name") or not key.startswith(others)
    ]


def _is_default(key: str, config: Config, mine: Mapping[str, str]) -> bool:
    """Whether there is nothing of the paper to depart from: it has another network or optimizer."""
    return config.model.paper is None or f"{key.rpartition('.')[0]}.name" in mine


def departures(config: Config) -> dict[str, str]:
    """In what a run is not as the paper's of this network and method, in words, by the setting."""
    of_paper = partial(paper.settings_for, config.model.paper, config.method_name, config.is_thin)
    usual_run = paper_run(config, stretch=config.stretch)
    mine, usual = flat_settings(config), flat_settings(usual_run)
    for kind, keys in (("optimizer", ("optimizer.",)), ("learning_rate", ("learning_rate.", "optimizer.lr"))):
        if getattr(config, kind).name != getattr(usual_run, kind).name or config.model.paper is None:
            usual = {key: value for key, value in usual.items() if not key.startswith(keys)} | _defaults(config, kind)
    if config.model.paper is not None:
        usual |= {"written_for": of_paper(config.stretch)["written_for"], "stretch": of_paper().get("stretch", 1.0)}
    changed = [key for key in {**mine, **usual} if mine.get(key) != usual.get(key)]
    changed.sort(key=_place)
    return {key: in_words(key, mine.get(key), config) for key in changed}


def _place(key: str) -> tuple[int, str]:
    """Where a setting stands in a label: the name of an optimizer before its fields."""
    return (_ORDER.index(key) if key in _ORDER else len(_ORDER), key.removesuffix("name"))


def shared_departures(configs: Sequence[Config]) -> list[str]:
    """What all these runs depart in alike and what says nothing about a method, e.g. a precision: worth saying once."""
    each = [set(_not_of_methods(config).values()) for config in configs]
    return sorted(set.intersection(*each)) if each else []


def usual_departures(configs: Sequence[Config]) -> dict[str, str]:
    """By the setting, what more than half of these runs depart in alike, but not all.

    Seeds of a run count once, and so do its storages, which say the same of a method.
    """
    distinct = {(alike := replace(config, seed=0, storage="dense")).id: alike for config in configs}
    counted = Counter(item for config in distinct.values() for item in _not_of_methods(config).items())
    return {key: text for (key, text), number in sorted(counted.items()) if len(distinct) / 2 < number < len(distinct)}


def _not_of_methods(config: Config) -> dict[str, str]:
    return {key: text for key, text in departures(config).items() if key != "start" and not key.startswith(_OF_METHODS)}


def paper_run(config: Config, **settings: Any) -> Config:
    """The run of the paper that this one is, or is a variation of: full length, its own sparsity and data."""
    told = config.settings()
    settings |= {"model": told["model"], "data": told["data"], "method": config.method_name}
    if config.model.paper is None:  # of which nothing else is known
        settings |= _how_trained(told)
    settings["written_for"] = config.written_for  # so that points in time compare
    if "sparsity" in config.method:
        settings["sparsity"] = config.sparsity
    if config.is_thin:
        settings["width"] = "thin"
    return make_config(settings)


def _how_trained(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's settings those that none of its network could do without."""
    needed = ("epochs", "max_steps", "batch_size", "optimizer", "learning_rate")
    return {key: told[key] for key in needed if told.get(key) is not None}


def flat_settings(config: Config) -> dict[str, Any]:
    """All settings that a label speaks of, by dotted keys, with the defaults of the method filled in."""
    tables = config.settings()
    start = _read_start(config)
    flat = {f"method.{f.name}": f.default for f in fields(METHODS[config.method_name])}
    flat |= dict.fromkeys(_IN_EPOCHS)
    flat |= {f"method.{key}": value for key, value in tables.pop("method").items()}
    for kind in ("optimizer", "learning_rate"):
        flat |= {f"{kind}.{key}": value for key, value in tables.pop(kind, {}).items()}
    flat |= {**tables, "start": start, "start.rescale": config.start.rescale, "start.moments": config.start.moments}
    return {key: value for key, value in flat.items() if key not in _NOT_IN_A_LABEL}


def _defaults(config: Config, kind: str) -> dict[str, Any]:
    """What a component of a run would be if only its name had been said."""
    part = getattr(config, kind)
    if part.name == "table":  # in settings a field of the optimizer, which has none before one is said
        return {}
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
        known |= _how_trained(told)
    other = make_config(merge(known, {key: value for key, value in said.items() if key not in ("seed", "epochs")}))
    own = {**said, **{f"method.{key}": value for key, value in said.get("method", {}).items()}}
    parts = [label(other), *(f"{key.split('.')[-1]} {own[key]}" for key in _OTHER_RUN_MAY_SAY if key in own)]
    return parts[0] if parts == [family(other)] else f"({', '.join(parts)})"
