"""Schedules: functions of the step."""

from collections.abc import Callable, Mapping
from math import cos, pi

Schedule = float | Mapping[int, float] | Callable[[int], float]


def value_at(schedule: Schedule, step: int) -> float:
    """A schedule's value at a step: a plain number, {first step: value} or any function of the step.

    >>> value_at({0: 1e-3, 1000: 1e-6}, 1000)
    1e-06
    """
    if isinstance(schedule, Mapping):
        return schedule[first_step(schedule, step)]
    return schedule(step) if callable(schedule) else schedule


def cosine(start: float, step: int, until: int | None) -> float:
    """Falls from `start` at step 0 to 0 at `until`; stays at `start` where there is no end."""
    if until is None:
        return start
    return start / 2 * (1 + cos(pi * min(step, until) / until))


def cubic(end: float, step: int, until: int) -> float:
    """Rises from 0 at step 0 to `end` at `until`, fast first: the sparsity of gradual pruning (Zhu & Gupta, 2017)."""
    return end * (1 - (1 - min(step, until) / until) ** 3)


def first_step(schedule: Mapping[int, float], step: int) -> int:
    """Where the part of a schedule begins that a step is in."""
    return max(first for first in schedule if first <= step)
