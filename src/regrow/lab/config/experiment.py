"""Experiments: TOML files that describe many runs.

Keys at the top hold for every run. Each `[[runs]]` table adds its own. A `grid` table, at the top or in a run, gives
lists of values; every combination is a run. `imports` are files of yours, named from the experiment's folder.

    model = "lenet_300_100"
    grid.seed = [0, 1, 2]
    [[runs]]
    method = "DSR"
    grid.sparsity = [0.99, 0.95]
    [[runs]]
    method = "Dense"
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from regrow.lab.config.config import Config, make_config, spell_out
from regrow.lab.config.imports import bring
from regrow.lab.config.paper import Settings, merge

MOST_RUNS = 10_000
_TOO_DEEP = "is nested too deeply; no setting is more than a table in a table"
_SHORT = {"sparsity": "method.sparsity", "method": "method.name"}
_ALIASES = {**_SHORT, **{f"start.run.{short}": f"start.run.{key}" for short, key in _SHORT.items()}}


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> list[Config]:
    """All runs of a file, with some settings replaced, e.g. ["epochs=20", "seed=[0, 1]"]."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no experiment {path}; write one, or see those under experiments/") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} {_TOO_DEEP}") from None
    for name in content.pop("imports", []):
        bring(name, path.parent)
    pairs = [parse_override(text) for text in overrides]
    try:
        return expand(content, pairs)
    except RecursionError:
        raise ValueError(f"{path} {_TOO_DEEP}") from None


def expand(content: Mapping[str, Any], overrides: Sequence[tuple[str, Any]] = ()) -> list[Config]:
    """Every combination that an experiment names; refuses to name none, or one twice."""
    common = {key: value for key, value in content.items() if key not in ("runs", "grid")}
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("runs must be a list of tables, written as [[runs]]")
    grids = [_axes(content.get("grid", {}), table, overrides) for table in tables]
    lists = [key for key, value in overrides if isinstance(value, list)]
    for key in lists:
        if not any(key in axes for axes in grids):
            raise ValueError(f"{key} is given a list, but no grid of this experiment varies it; give one value")
    num_runs = sum(prod(map(len, axes.values())) for axes in grids)
    if num_runs > MOST_RUNS:
        raise ValueError(f"this experiment has {num_runs:,} runs, and {MOST_RUNS:,} are the most; split its grids")
    if not num_runs:
        raise ValueError("this experiment has no runs; is one of its grids an empty list?")
    single = [(key, value) for key, value in overrides if not isinstance(value, list)]
    configs = [
        make_config(_with(settings, [*chosen, *single]))
        for table, axes in zip(tables, grids, strict=True)
        for settings in [merge(spell_out(common), spell_out(_without_grid(table)))]
        for chosen in _combinations(axes)
    ]
    [(most_often, times)] = Counter(config.id for config in configs).most_common(1)
    if times > 1:
        raise ValueError(
            f"this experiment names the run {most_often} more than once; does a grid vary what has no effect?"
        )
    return configs


def _axes(grid: Any, table: Mapping[str, Any], overrides: Sequence[tuple[str, Any]]) -> dict[str, list[Any]]:
    """What a table varies, after what was said on top of it."""
    axes = {**_flatten(grid), **_flatten(table.get("grid", {}))}
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ValueError(f"grid.{key} must be a list of values, got {values!r}")
    single = [(key, value) for key, value in overrides if not isinstance(value, list)]
    lists = {key: value for key, value in overrides if isinstance(value, list)}
    told = {name for key, value in single for name in (key, *_flatten(nest(key, value)))}
    return {axis: lists.get(axis, values) for axis, values in axes.items() if axis not in told}


def _combinations(axes: Mapping[str, list[Any]]) -> Iterator[list[tuple[str, Any]]]:
    return (list(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _without_grid(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "grid"}


def _with(settings: Settings, pairs: Any) -> Settings:
    for key, value in pairs:
        settings = merge(settings, nest(key, value))
    return settings


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`, the key dotted, the value as in TOML; text needs no quotes.

    >>> parse_override("sparsity=0.9"), parse_override("method=DSR")
    (('method.sparsity', 0.9), ('method.name', 'DSR'))
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ValueError(f"an override is written key=value, e.g. optimizer.momentum=0.8; got {text!r}")
    key = _ALIASES.get(key, key)
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, _number_or_text(value.strip())


def _number_or_text(value: str) -> float | str:
    """.5 and 5. are numbers to everybody but TOML."""
    try:
        return float(value)
    except ValueError:
        return value


def nest(key: str, value: Any) -> Settings:
    """
    >>> nest("optimizer.lr", 0.1)
    {'optimizer': {'lr': 0.1}}
    """
    for part in reversed(key.split(".")):
        value = {part: value}
    made: Settings = value
    return made


def _flatten(grid: Any, prefix: str = "") -> dict[str, Any]:
    """A grid's axes by dotted keys: `grid.method.prune` in TOML is a table in a table."""
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid must be a table of lists, got {grid!r}")
    axes: dict[str, Any] = {}
    for key, value in grid.items():
        name = _ALIASES.get(prefix + key, prefix + key) if not isinstance(value, Mapping) else prefix + key
        axes |= _flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return axes
