"""Experiments: TOML files that describe many runs.

Keys at the top hold for every run. Each `[[runs]]` table adds its own. A `grid` table, at the top or in a run, gives
lists of values; every combination is a run.

    model = "lenet_300_100"
    grid.seed = [0, 1, 2]
    [[runs]]
    method = "DSR"
    grid.sparsity = [0.99, 0.95]
    [[runs]]
    method = "Dense"
"""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from regrow.lab.config import Config, make_config, spell_out
from regrow.lab.paper import Settings, merge

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
    return expand(content, [parse_override(text) for text in overrides])


def expand(content: Mapping[str, Any], overrides: Sequence[tuple[str, Any]] = ()) -> list[Config]:
    """Every combination that an experiment names; refuses to name none, or one twice."""
    common = {key: value for key, value in content.items() if key not in ("runs", "grid")}
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("runs must be a list of tables, written as [[runs]]")
    found = [_one_table(common, content.get("grid", {}), table, overrides) for table in tables]
    lists = [key for key, value in overrides if isinstance(value, list)]
    for key in lists:
        if not any(key in grid for grid, _ in found):
            raise ValueError(f"{key} is given a list, but no grid of this experiment varies it; give one value")
    configs = [config for _, some in found for config in some]
    if not configs:
        raise ValueError("this experiment has no runs; is one of its grids an empty list?")
    ids = [config.id for config in configs]
    twice = next((id_ for id_ in ids if ids.count(id_) > 1), None)
    if twice:
        raise ValueError(f"this experiment names the run {twice} more than once; does a grid vary what has no effect?")
    return configs


def _one_table(
    common: Mapping[str, Any], grid: Any, table: Mapping[str, Any], overrides: Sequence[tuple[str, Any]]
) -> tuple[dict[str, list[Any]], list[Config]]:
    """A table's grid, and its runs."""
    own = {key: value for key, value in table.items() if key != "grid"}
    settings = merge(spell_out(common), spell_out(own))
    axes = {**_flatten(grid), **_flatten(table.get("grid", {}))}
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ValueError(f"grid.{key} must be a list of values, got {values!r}")
    single = [(key, value) for key, value in overrides if not isinstance(value, list)]
    lists = {key: value for key, value in overrides if isinstance(value, list)}
    told = {name for key, value in single for name in (key, *_flatten(nest(key, value)))}
    axes = {axis: lists.get(axis, values) for axis, values in axes.items() if axis not in told}
    combinations = [list(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return axes, [make_config(_with(settings, [*chosen, *single])) for chosen in combinations]


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
