"""Parts of a run that own their settings: models, data sets, optimizers, learning rates.

Each is one registered class, in a file of ours or of anybody's: a frozen dataclass whose fields are what can be set.
`check` refuses values that make no sense. In settings a component is its name, a short form that it understands, or a
table with a name and fields; and so it prints itself.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from regrow.core.names import suggest
from regrow.methods.method import is_number

Settings = dict[str, Any]
KINDS: dict[str, dict[str, "type[Component]"]] = {}
"""The components of each kind by name."""
HOMES = {"model": "models", "data": "data", "optimizer": "optimizers", "learning_rate": "learning_rates"}
"""The packages with ours, by the kind, which is the key in settings."""
_FILES: dict[tuple[str, str], str] = {}


class Component:
    """A part of a run. What is not said otherwise is right for one without a short form."""

    kind: ClassVar[str]
    name: ClassVar[str]

    def check(self) -> None:
        """Refuse values that make no sense."""

    @classmethod
    def names(cls) -> list[str]:
        """What it is called in settings."""
        return [cls.name]

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        """The fields that a text such as "wrn_28_2" says; None if it speaks of another component."""
        return {} if text == cls.name else None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """One with these fields, for which JSON and TOML have fewer types."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                called = " ".join(dict.fromkeys((cls.kind, cls.name)))  # there is only one start
                raise ValueError(f"{called} has no field {name!r}; {near_and_all(name, known)}")
        for field in fields(cls):  # type: ignore[arg-type]
            if field.default is MISSING and field.default_factory is MISSING and field.name not in given:
                raise ValueError(f"{cls.kind} {cls.name} needs {field.name}, e.g. {cls.kind}.{field.name}=...")
        hints = get_type_hints(cls)
        for name, value in given.items():
            if _is_single(hints[name]):
                check_single(f"{cls.kind}.{name}", value)
        made = cls(**{name: _converted(value, hints[name]) for name, value in given.items()})
        made.check()
        return made

    def settings(self) -> Settings:
        """All fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def departures(self) -> Settings:
        """The fields that are not as they would be if nobody had said anything.

        Ids of runs are made of these: a field that is added later, with a default, leaves them as they are.
        """
        departed = {}
        for field in fields(self):  # type: ignore[arg-type]
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if getattr(self, field.name) != default:
                departed[field.name] = getattr(self, field.name)
        return departed

    def said(self) -> str | Settings:
        """What one would write into settings to get it."""
        departed = self.departures()
        return {"name": self.name, **departed} if departed else self.name

    def __str__(self) -> str:
        """In one word, for ids and tables."""
        return self.name

    def in_words(self) -> str:
        """It among others of its name."""
        said = self.said()
        if isinstance(said, str):
            return said
        return f"{self} ({', '.join(f'{key}={value}' for key, value in said.items() if key != 'name')})"

    def check_number(self, name: str, *, below: float | None = None) -> None:
        """Refuse a field that is no number >= 0, or not below a bound."""
        value = getattr(self, name)
        if not is_number(value) or value < 0 or (below is not None and value >= below):
            bounds = "a number >= 0" if below is None else f"in [0, {below:g})"
            raise ValueError(f"{self.kind}.{name} must be {bounds}, got {value!r}")


def near_and_all(word: str, known: Iterable[str]) -> str:
    """What a misspelt field may have been, and which there are.

    >>> near_and_all("peek", ["warmup", "peak"]), near_and_all("momentum", ["eps"])
    ("did you mean 'peak'?; it has peak, warmup", 'it has eps')
    """
    names = sorted(known)
    near = suggest(word, names)
    told = [near] if near.startswith("did you mean") else []
    return "; ".join([*told, f"it has {', '.join(names) or 'none'}"])


def check_single(key: str, value: Any) -> None:
    """A run has one value of what a grid may vary."""
    if isinstance(value, list):
        raise ValueError(
            f"{key} is one value in a run, got {value}; for a run with each of them write grid.{key} = {value} in an "
            "experiment"
        )


def _is_single(hint: Any) -> bool:
    """Whether what is annotated so is a number or a text, or maybe none."""
    parts = get_args(hint) if isinstance(hint, UnionType) else [hint]
    return set(parts) <= {int, float, str, bool, NoneType}


def _converted(value: Any, hint: Any) -> Any:
    """A whole number where numbers are meant is one of these; so that the same settings make the same id."""
    if isinstance(value, list):
        return tuple(_converted(own, float) for own in value) if get_origin(hint) is tuple else tuple(value)
    is_float = hint is float or float in getattr(hint, "__args__", ())
    return float(value) if is_float and type(value) is int else value


AnyComponent = TypeVar("AnyComponent", bound=type[Component])


@dataclass_transform(kw_only_default=True, frozen_default=True)
def component(cls: AnyComponent) -> AnyComponent:
    """Make a class a component, known by its `name` among those of its `kind`."""
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    file, key = sys._getframe(1).f_code.co_filename, (cls.kind, cls.name)
    if _FILES.setdefault(key, file) != file:
        raise ValueError(
            f"there is a {cls.kind} {cls.name!r} already, in {_FILES[key]}; give the one in {file} another name"
        )
    KINDS.setdefault(cls.kind, {})[cls.name] = made
    return made  # type: ignore[no-any-return]


def components(kind: str) -> dict[str, type[Component]]:
    """All of a kind: ours, and others that were imported."""
    import_module(f"regrow.lab.{HOMES[kind]}")
    return KINDS[kind]


def read_component(kind: str, given: Any) -> Any:
    """A component out of its name, a short form, or a table with a name and fields."""
    table = {"name": given} if isinstance(given, str) else given
    if isinstance(table, Mapping) and table and "name" not in table:
        raise ValueError(f"say which {kind} has {' and '.join(table)}: {kind}.name=...; {suggest('', _names(kind))}")
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ValueError(f"{kind} must be a name, or a table with one, got {given!r}")
    known, name = components(kind), table["name"]
    rest = {key: value for key, value in table.items() if key != "name"}
    for cls in [known[name]] if name in known else known.values():
        told = cls.parse(name)
        if told is not None:
            return cls.read({**told, **rest})
    near = suggest(name, _names(kind))
    yours = "" if near.startswith("did you mean") else "; yours come with regrow --import FILE"
    raise ValueError(f"there is no {kind} {name!r}; {near}{yours}")


def _names(kind: str) -> list[str]:
    """All names that one may have meant."""
    return sorted({name for cls in components(kind).values() for name in cls.names()})
