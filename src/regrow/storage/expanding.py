"""Modules that expand a parameter where they read it: how a vector of values can stand in a dense weight's place.

The module gets a class of its own, made from its old one, in which the parameter's name is a property. In
`module._parameters`, from which torch lists, saves, loads and moves parameters, the name stays that of the vector.
"""

from functools import cache
from typing import Any

from torch import Tensor, nn

from regrow.names import unwrap
from regrow.storage.sharing import Sharing

Owners = list[tuple[nn.Module, str]]
_SHARINGS = "_sharings"


def shared_values(model: nn.Module) -> list[nn.Parameter]:
    """The value vectors of a model's hashed layers, tied ones once."""
    found = {
        id(parameter): parameter
        for module in unwrap(model).modules()
        for name in module.__dict__.get(_SHARINGS, {})
        if (parameter := module._parameters[name]) is not None
    }
    return list(found.values())


def owners_of(model: nn.Module, parameter: Tensor) -> Owners:
    """Every module that holds a parameter, and under which name."""
    return [
        (module, name)
        for module in unwrap(model).modules()
        for name, own in module._parameters.items()
        if own is parameter
    ]


@cache
def _expanding(base: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """A module class whose parameters of these names are expanded where they are read."""

    def expanded(name: str) -> property:
        return property(lambda module: module.__dict__[_SHARINGS][name].expand(module._parameters[name]))

    def reduce(module: nn.Module, protocol: int) -> tuple[Any, ...]:
        return _make_empty, (base, names), module.__getstate__()  # type: ignore[no-untyped-call]

    made = {"__module__": base.__module__, "__reduce_ex__": reduce, "_expands": (base, names)}
    return type(f"Hashed{base.__name__}", (base,), made | {name: expanded(name) for name in names})


def _make_empty(base: Any, names: tuple[str, ...]) -> nn.Module:
    """For pickling and copying: a module of a class that only exists here, still without its contents."""
    cls = _expanding(base, names)
    return cls.__new__(cls)


def start_expanding(module: nn.Module, name: str, values: nn.Parameter, sharing: Sharing) -> None:
    """Let a module keep values in the place of a dense parameter."""
    old: Any = type(module)
    base, names = getattr(old, "_expands", (old, ()))
    module.__dict__.setdefault(_SHARINGS, {})
    expand_by(module, name, sharing)
    module._parameters[name] = values
    module.__class__ = _expanding(base, (*names, name))


def expand_by(module: nn.Module, name: str, sharing: Sharing) -> None:
    module.__dict__[_SHARINGS][name] = sharing


def stop_expanding(module: nn.Module, name: str, dense: nn.Parameter) -> None:
    """Give a module its dense parameter back."""
    base, names = type(module)._expands  # type: ignore[attr-defined]
    left = tuple(other for other in names if other != name)
    module.__class__ = _expanding(base, left) if left else base
    del module.__dict__[_SHARINGS][name]
    if not left:
        del module.__dict__[_SHARINGS]
    module._parameters[name] = dense
