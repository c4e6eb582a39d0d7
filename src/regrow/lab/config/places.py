"""Where a setting belongs, for whoever names it without its table."""

from collections.abc import Iterable
from dataclasses import fields

from regrow.lab.config.component import HOMES, Component, components
from regrow.lab.config.start import Start
from regrow.methods.method import METHODS, Method


def places_of(name: str) -> list[str]:
    """The dotted keys that end in this name.

    >>> places_of("lr"), places_of("momentum")
    (['optimizer.lr'], ['optimizer.momentum', 'method.momentum'])
    """
    found = ["optimizer"] if name == "lr" else []
    for table in HOMES:
        found += [table] if _have(components(table).values(), name) else []
    found += ["start"] if _have([Start], name) else []
    found += ["method"] if _have(METHODS.values(), name) else []
    return [f"{table}.{name}" for table in found]


def _have(kinds: Iterable[type[Component] | type[Method]], name: str) -> bool:
    return any(name == field.name for kind in kinds for field in fields(kind))  # type: ignore[arg-type]
