"""Experiments: TOML files that describe many runs.

Keys at the top hold for every run. Each `[[runs]]` table adds its own. A `grid` table, at the top or in a run, gives
lists of values; every combination is a run. A `tune` table gives lists of values of which `regrow tune` searches the
best for each run. `imports` are files of yours, named from the experiment's folder.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from regrow.lab.config.component import Settings
from regrow.lab.config.config import Config, make_config, spell_out
from regrow.lab.config.imports import bring
from regrow.lab.config.paper import merge

MOST_RUNS = 10_000
T = TypeVar("T")
Pairs = Sequence[tuple[str, Any]]
"""Settings by dotted keys."""
_TOO_DEEP = "is nested too deeply; no setting is more than a table in a table"
_SHORT = {"sparsity": "method.sparsity", "method": "method.name"}
_ALIASES = {**_SHORT, **{f"start.run.{short}": f"start.run.{key}" for short, key in _SHORT.items()}}


@dataclass(frozen=True)
class Table:
    """A `[[runs]]` table and what holds for all, after what was said on top of it: settings, and lists by dotted keys.

    `above`: settings that win over lists.
    """

    settings: Settings
    grid: dict[str, list[Any]]
    tune: dict[str, list[Any]]
    above: Pairs

    def configs(self, axes: Mapping[str, list[Any]]) -> list[Config]:
        """Every combination of the values on some axes."""
        return [make_config(with_pairs(self.settings, [*chosen, *self.above])) for chosen in combinations(axes)]


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> list[Config]:
    """All runs of a file, with some settings replaced, e.g. ["epochs=20", "seed=[0, 1]"]."""
    return read(path, overrides, expand)


def read(path: Path, overrides: Sequence[str], make: Callable[[Mapping[str, Any], Pairs], T]) -> T:
    """What is made of a file's content and of pairs said on top of it."""
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
        return make(content, pairs)
    except RecursionError:
        raise ValueError(f"{path} {_TOO_DEEP}") from None


def expand(content: Mapping[str, Any], overrides: Pairs = ()) -> list[Config]:
    """Every combination that an experiment names; refuses to name none, or one twice."""
    tables = tables_of(content, overrides)
    if searched := next((table.tune for table in tables if table.tune), None):
        raise ValueError(
            f"this experiment searches {' and '.join(searched)}; run it by `regrow tune`, or say one value for each"
        )
    configs = [config for table in tables for config in table.configs(table.grid)]
    check_once(configs)
    return configs


def tables_of(content: Mapping[str, Any], overrides: Pairs = ()) -> list[Table]:
    """The tables of an experiment; refuses too many runs, none, and lists for what is neither varied nor searched."""
    common = _plain(content)
    tables = content.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("runs must be a list of tables, written as [[runs]]")
    single = [(key, value) for key, value in overrides if not isinstance(value, list)]
    made = [
        Table(
            merge(spell_out(common), spell_out(_plain(table))),
            _axes("grid", content, table, overrides),
            _axes("tune", content, table, overrides),
            single,
        )
        for table in tables
    ]
    for key in [key for key, value in overrides if isinstance(value, list)]:
        if not any(key in table.grid or key in table.tune for table in made):
            raise ValueError(f"{key} is given a list, but no grid of this experiment varies it; give one value")
    num_runs = sum(prod(map(len, [*table.grid.values(), *table.tune.values()])) for table in made)
    if num_runs > MOST_RUNS:
        raise ValueError(f"this experiment has {num_runs:,} runs, and {MOST_RUNS:,} are the most; split its grids")
    if not num_runs:
        raise ValueError("this experiment has no runs; is one of its grids an empty list?")
    return made


def check_once(configs: Sequence[Config]) -> None:
    """Refuse to name a run twice."""
    [(most_often, times)] = Counter(config.id for config in configs).most_common(1)
    if times > 1:
        raise ValueError(
            f"this experiment names the run {most_often} more than once; does a grid vary what has no effect?"
        )


def _axes(kind: str, content: Mapping[str, Any], table: Mapping[str, Any], overrides: Pairs) -> dict[str, list[Any]]:
    """What a table varies or searches, after what was said on top of it."""
    axes = {**_flatten(kind, content.get(kind, {})), **_flatten(kind, table.get(kind, {}))}
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ValueError(f"{kind}.{key} must be a list of values, got {values!r}")
    single = [(key, value) for key, value in overrides if not isinstance(value, list)]
    lists = {key: value for key, value in overrides if isinstance(value, list)}
    told = {name for key, value in single for name in (key, *_flatten("grid", nest(key, value)))}
    return {axis: lists.get(axis, values) for axis, values in axes.items() if axis not in told}


def combinations(axes: Mapping[str, list[Any]]) -> Iterator[list[tuple[str, Any]]]:
    """One value of each axis."""
    return (list(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a table."""
    return {key: value for key, value in table.items() if key not in ("runs", "grid", "tune")}


def with_pairs(settings: Settings, pairs: Pairs) -> Settings:
    """Settings with some more on top."""
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


def _flatten(kind: str, grid: Any, prefix: str = "") -> dict[str, Any]:
    """A grid's axes by dotted keys: `grid.method.prune` in TOML is a table in a table."""
    if not isinstance(grid, Mapping):
        raise ValueError(f"{kind} must be a table of lists, got {grid!r}")
    axes: dict[str, Any] = {}
    for key, value in grid.items():
        name = _ALIASES.get(prefix + key, prefix + key) if not isinstance(value, Mapping) else prefix + key
        axes |= _flatten(kind, value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return axes
