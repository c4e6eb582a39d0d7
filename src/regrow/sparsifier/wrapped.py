"""Optimizers in the wrappers of trainers: which one owns the state, so that its steps are those that count."""

from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

_NAMES = ("optimizer", "_optimizer", "optim")  # accelerate, Lightning and Fabric, and what others are likely to use


def owner_of_state(optimizer: Any) -> Any:
    """The optimizer inside wrappers that only pass on its steps; a wrapper that does more is refused.

    Nothing is ever assigned to a wrapper, as that may go through to what is inside.
    """
    while (inner := _passed_on(optimizer)) is not None:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        return optimizer
    name = type(optimizer).__name__
    if other := next(_optimizers_in(vars(optimizer)), None):
        raise ValueError(
            f"{name} has {type(other).__name__} inside and does more than pass on its steps; train with "
            f"{type(other).__name__} itself"
        )
    if not {"state", "param_groups"} <= set(vars(optimizer)):
        raise ValueError(f"{name} keeps its state in another object; attach to the optimizer that owns it")
    return optimizer


def _passed_on(optimizer: Any) -> Optimizer | None:
    for name in _NAMES:
        inner = getattr(optimizer, name, None)
        if (
            isinstance(inner, Optimizer)
            and inner is not optimizer
            and getattr(optimizer, "state", None) is inner.state
            and _parameters(optimizer) == _parameters(inner)
        ):
            return inner
    return None


def _parameters(optimizer: Any) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in getattr(optimizer, "param_groups", [])]


def _optimizers_in(attributes: dict[str, Any]) -> Iterator[Optimizer]:
    """Other optimizers among attributes, and in lists and mappings there."""
    for value in attributes.values():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (thing for thing in held if isinstance(thing, Optimizer))
