"""All the methods that are here, made without a word of which, so that no test minds one more or one fewer."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from typing import Any, Literal, get_args, get_origin, get_type_hints

from regrow import METHODS, Method, Packed

EVERY_STEP = [name for name, cls in METHODS.items() if cls.rewires_every_step]


def goes_by_weight(cls: type[Method]) -> bool:
    """Whether single weights are what counts: their signs, or the value that each of them shares."""
    return "sign" in cls.needs or cls.storage is not None


def can_be_packed(method: Method) -> bool:
    return method.storage is None and method.granularity == "weight" and method.needs <= Packed.offers


def choices(cls: type[Method]) -> dict[str, tuple[Any, ...]]:
    """The fields in which a method offers a few ways to work, and these."""
    hints = get_type_hints(cls)
    literals = {field.name: hints[field.name] for field in fields(cls) if get_origin(hints[field.name]) is Literal}
    return {name: get_args(hint) for name, hint in literals.items()}


def make(cls: type[Method], **options: Any) -> Method:
    """A method with those of the options that it has a field for."""
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in options.items() if name in known})


def in_every_way(cls: type[Method], **options: Any) -> Iterator[Method]:
    """A method in each of the ways that it can work."""
    offered = choices(cls)
    for chosen in product(*offered.values()):
        yield make(cls, **options, **dict(zip(offered, chosen, strict=True)))
