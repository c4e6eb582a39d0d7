"""What docstrings say of the fields of a method."""

import re

_NAMES = r"`\w+`(?:(?:, | and )`\w+`)*"


def about_fields(cls: type) -> dict[str, str]:
    """A line for each field that has one, in the docstring of the class or of one that it inherits from.

    It is written as here: `name`: what it is. `one`, `other`: what both are.
    """
    told: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        told |= _read(one.__doc__ or "")
    return told


def _read(docstring: str) -> dict[str, str]:
    """
    >>> _read("`fraction`: of units, falling to none at `until`. `mix`: the weight of the gradient.")
    {'fraction': 'of units, falling to none at `until`', 'mix': 'the weight of the gradient'}
    """
    found = re.findall(rf"({_NAMES}): (.*?)(?=\s{_NAMES}: |\n\s*\n|\Z)", docstring, re.DOTALL)
    return {name: " ".join(text.split()).rstrip(".") for names, text in found for name in re.findall(r"`(\w+)`", names)}
