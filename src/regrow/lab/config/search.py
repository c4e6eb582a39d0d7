"""Experiments that search: for each of their runs the best of some settings, told by a `tune` table.

    model = "gpt"
    data = "enwik8"
    tune.learning_rate.peak = [0.001, 0.002, 0.004, 0.008]
    grid.seed = [0, 1, 2]
    [[runs]]
    method = "SET"
    grid.sparsity = [0.9, 0.8]

Every method at every density gets as many trials, with the first of its seeds, tested on a part held out of what is
trained on. What did best is then trained on everything, with each seed, and tested once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regrow.lab.config.config import Config
from regrow.lab.config.experiment import Pairs, Table, check_once, combinations, read, tables_of


@dataclass(frozen=True)
class Choice:
    """Values of the searched settings, by dotted keys, and the runs that have them, one for each seed."""

    values: tuple[tuple[str, Any], ...]
    configs: tuple[Config, ...]

    @cached_property
    def trial(self) -> Config:
        """The run by which it is judged, which never sees the test."""
        first = self.configs[0]
        return replace(first, data=first.data.for_searching())

    def __str__(self) -> str:
        """The last part of each key, which tells enough where there are few."""
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.values)


@dataclass(frozen=True)
class Search:
    """Runs that are to differ in nothing but the seed, and the choices of which they are to have the best."""

    choices: tuple[Choice, ...]


def read_searches(path: Path, overrides: Sequence[str] = ()) -> list[Search]:
    """The searches of a file, with some settings replaced, e.g. ["epochs=20", "learning_rate.peak=[0.1, 0.2]"]."""
    return read(path, overrides, searches_in)


def searches_in(content: Mapping[str, Any], overrides: Pairs = ()) -> list[Search]:
    """What an experiment searches; refused if that is nothing, or not as much for each of its runs."""
    found = [search for table in tables_of(content, overrides) for search in _searches_of(table)]
    sizes = {len(search.choices): search for search in found}
    if 1 in sizes:
        example = "tune.learning_rate.peak = [0.001, 0.002, 0.004]"
        raise ValueError(f"{_called(sizes[1])} has one choice only; say what is to be searched, e.g. {example}")
    if len(sizes) > 1:
        told = ", ".join(f"{_called(search)} has {size} choices" for size, search in sizes.items())
        raise ValueError(f"{told}; give each method at each density as many, or none is compared fairly")
    choices = [choice for search in found for choice in search.choices]
    check_once([config for choice in choices for config in choice.configs])
    check_once([choice.trial for choice in choices])  # which refuses data that cannot hold out a part
    return found


def _searches_of(table: Table) -> list[Search]:
    rest = {key: values for key, values in table.grid.items() if key != "seed"}
    seeds = {key: values for key, values in table.grid.items() if key == "seed"}
    return [
        Search(
            tuple(
                Choice(tuple(values), tuple(table.configs({**_single(chosen), **_single(values), **seeds})))
                for values in combinations(table.tune)
            )
        )
        for chosen in combinations(rest)
    ]


def _single(chosen: Sequence[tuple[str, Any]]) -> dict[str, list[Any]]:
    return {key: [value] for key, value in chosen}


def _called(search: Search) -> str:
    config = search.choices[0].configs[0]
    return f"{config.method_name} at {config.sparsity:g}" if "sparsity" in config.method else config.method_name
