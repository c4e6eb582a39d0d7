"""Saved states: what makes one fit. All of one is checked before anything is taken from it."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from regrow.core import __version__
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.units import Layer
from regrow.methods.method import Method, is_whole
from regrow.sparsifier.moments import GrownMoments
from regrow.sparsifier.version_1 import from_version_1
from regrow.storage.base import DAMAGED, Storage

VERSION = 2
KEYS = frozenset(
    [
        "version",
        "regrow",
        "method",
        "settings",
        "granularity",
        "layers",
        "seed",
        "step",
        "target",
        "budget",
        "goal",
        "memory",
        "history",
        "totals",
    ]
)
"""What a state says whatever the storage is."""


def as_state(method: Method, storage: Storage, tally: Tally) -> dict[str, Any]:
    """What a state says of method, storage and numbers.

    What grows or may be empty is in tuples, which torch.distributed.checkpoint takes as one thing each.
    """
    return {
        "version": VERSION,
        "regrow": __version__,
        "method": type(method).__name__,
        "settings": repr(method),
        "granularity": str(method.granularity),
        "layers": _listed(storage.layers),
        "target": tally.target,
        "budget": tally.budget,
        "goal": tuple(tally.goal),
        **storage.state(),
    }


def _listed(layers: Sequence[Layer]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((layer.name, layer.shape) for layer in layers)


def checked(state: Any, method: Method, storage: Storage, tally: Tally, moments: GrownMoments) -> dict[str, Any]:
    """A state of this version, of whichever it was; refused if it is damaged or of another method, model or budget."""
    state = as_current(state, method, storage.layers, storage)
    _check_numbers(state, tally, method.first_memory())
    for record in [*state["history"], *state["totals"]]:
        _check_record(record, {layer.name for layer in storage.layers})
    if isinstance(state.get("beside"), Mapping):
        moments.check_state(state["beside"])
    counts = storage.check({key: value for key, value in state.items() if key not in KEYS})
    slack = state["budget"] - tally.weights_in(counts)
    if not 0 <= slack < max(tally.unit_sizes):
        raise ValueError(f"{DAMAGED}: it has {-slack:+,} weights beside its budget")
    return dict(state)


def as_current(state: Any, method: Method, layers: Sequence[Layer], storage: Storage | None = None) -> dict[str, Any]:
    """A state of this version, of whichever it was; refused if it is of another method, granularity or model.

    The storage need not be there yet.
    """
    if not isinstance(state, Mapping) or not {"version", "method", "granularity"} <= set(state):
        raise ValueError("this is not the state of a sparsifier; pass what sparsifier.state_dict() returned")
    _check_same(state, method)
    if not is_whole(state["version"]):
        raise ValueError(f"{DAMAGED}: its version is {state['version']!r}")
    if state["version"] == 1:
        state = from_version_1(state, layers, "changing_budget" in method.needs, storage)
    elif state["version"] != VERSION:
        raise ValueError(
            f"the state has version {state['version']}, this regrow reads up to {VERSION}; use the one that wrote it"
            f" ({state.get('regrow', 'unknown')})"
        )
    if missing := KEYS - set(state):
        raise ValueError(f"{DAMAGED}: it has no {min(missing)!r}")
    _check_layers(state, layers)
    return dict(state)


def _check_same(state: Mapping[str, Any], method: Method) -> None:
    name, granularity = type(method).__name__, str(method.granularity)
    if state["method"] != name:
        raise ValueError(f"the state is of {state['method']}, this sparsifier runs {name}; attach with the same method")
    if state["granularity"] != granularity:
        raise ValueError(
            f"the state has granularity {state['granularity']!r}, the method {granularity!r}; use the same"
        )


def _check_layers(state: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    theirs, ours = _as_layers(state["layers"]), dict(_listed(layers))
    if set(theirs) != set(ours):
        missing, extra = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
        raise ValueError(
            f"the state has other sparse layers (missing: {missing[:5]}, unknown: {extra[:5]}); attach with the same"
        )
    for name, shape in theirs.items():
        if shape != ours[name]:
            raise ValueError(f"the state has {name} of shape {shape}, this model of {ours[name]}; build the same model")
    if list(theirs) != list(ours):
        raise ValueError("the state has its layers in another order; build the same model")


def _as_layers(listed: Any) -> dict[str, tuple[int, ...]]:
    try:
        return {str(name): tuple(map(int, shape)) for name, shape in listed}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{DAMAGED}: its layers are {listed!r}") from error


def _check_numbers(state: Mapping[str, Any], tally: Tally, memory: Memory) -> None:
    goal = state["goal"]
    numbers = [state[key] for key in ("step", "target", "budget")]
    if not is_whole(state["seed"]) or not all(is_whole(n) and n >= 0 for n in numbers):
        raise ValueError(f"{DAMAGED}: seed, step, target or budget is no whole number")
    if abs(state["target"] - tally.target) >= max(tally.unit_sizes):  # of coarse units masks hold a little less
        raise ValueError(
            f"the state has a budget of {state['target']:,} weights, this sparsifier one of {tally.target:,}; attach "
            "with the same sparsity, or the masks that it began with"
        )
    is_list = isinstance(goal, Sequence) and len(goal) == len(tally.num_units)
    if not is_list or not all(is_whole(n) and 0 <= n <= units for n, units in zip(goal, tally.num_units, strict=True)):
        raise ValueError(f"{DAMAGED}: its goal is {goal!r}")
    theirs = state["memory"]
    if not isinstance(theirs, Mapping) or set(theirs) != set(memory) or not all(map(_is_finite, theirs.values())):
        raise ValueError(f"{DAMAGED}: its memory is {theirs!r}")
    history, totals = state["history"], state["totals"]
    if not isinstance(history, Sequence) or not isinstance(totals, Sequence) or len(totals) != bool(history):
        raise ValueError(f"{DAMAGED}: its history is no list, or has no totals")


def _check_record(record: Any, names: set[str]) -> None:
    fits = isinstance(record, Mapping) and set(record) == {"step", "pruned", "grown", "threshold"}
    if (
        not fits
        or not is_whole(record["step"])
        or record["step"] < 1
        or not (record["threshold"] is None or _is_finite(record["threshold"]))
    ):
        raise ValueError(f"{DAMAGED}: its history has {record!r}")
    for counts in (record["pruned"], record["grown"]):
        is_count = isinstance(counts, Mapping) and all(is_whole(n) and n >= 0 for n in counts.values())
        if not is_count or set(counts) != names:
            raise ValueError(f"{DAMAGED}: its history has {record!r}")


def _is_finite(number: Any) -> bool:
    return isinstance(number, (int, float)) and isfinite(number)
