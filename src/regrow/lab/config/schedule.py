"""Points in time: written in epochs, used in steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

TIMES = ("until", "begin")
"""Fields of methods that are points in time."""


@dataclass(frozen=True)
class Timetable:
    """Turns epochs of a training of `written_for` epochs into steps of one that lasts `num_steps`."""

    num_steps: int
    written_for: float

    def step(self, epoch: float) -> int:
        """
        >>> Timetable(num_steps=600, written_for=100).step(25)
        150
        """
        return round(epoch / self.written_for * self.num_steps)

    def steps(self, schedule: Mapping[float, Any]) -> dict[int, Any]:
        """A schedule by first steps; where two fall on the same step the later one holds."""
        return {self.step(epoch): self.duration(value) for epoch, value in sorted(schedule.items())}

    def duration(self, value: Any) -> Any:
        """
        >>> Timetable(num_steps=600, written_for=100).duration("2 epochs")
        12
        """
        num_epochs = _read_epochs(value)
        return value if num_epochs is None else max(1, self.step(num_epochs))

    def method_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a method, as written, with steps in place of epochs."""
        made: dict[str, Any] = {}
        for key, value in given.items():
            if key in TIMES and value is not None:
                made[key] = self.step(value)
            elif is_schedule(value):
                made[key] = self.steps(value)
            else:
                made[key] = self.duration(value) if key == "period" else value
        return made


def read_schedule(name: str, given: Any) -> dict[float, Any]:
    """{first epoch: value} with numbers as keys, in order; a plain number holds from the start."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return {0: given}
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} must be a number or a table {{first epoch: value}}, got {given!r}")
    pairs = [(_number(name, first), value) for first, value in given.items()]
    return dict(sorted(pairs))


def check_schedule(name: str, schedule: Mapping[float, Any], written_for: float) -> None:
    """Refuse a schedule that does not begin at 0 or goes on after the end."""
    if 0 not in schedule:
        raise ValueError(f"{name} must begin at epoch 0, got {dict(schedule)}")
    late = [first for first in schedule if first >= written_for]
    if late:
        raise ValueError(
            f"{name} changes at epoch {late[0]:g}, but schedules are written for {written_for:g} epochs; set "
            "written_for to the length they are meant for"
        )


def _number(name: str, text: Any) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must map first epochs, which are numbers; got {text!r}") from None
    if not isfinite(number) or number < 0:
        raise ValueError(f"{name} has an epoch {text!r}; epochs count from 0")
    whole: float = tidy(number)
    return whole


def rewritten(settings: dict[str, Any], written_for: float) -> dict[str, Any]:
    """The same settings with their points in time as epochs of a training of another length.

    >>> rewritten({"written_for": 100, "method": {"until": 90, "period": "2 epochs"}}, 50)
    {'written_for': 50, 'method': {'until': 45, 'period': '1 epochs'}}
    """
    ratio = written_for / settings["written_for"]

    def scaled(key: str, value: Any) -> Any:
        num_epochs = _read_epochs(value)
        if num_epochs is not None:
            return f"{num_epochs * ratio:g} epochs"
        if is_schedule(value):
            return {tidy(first * ratio): inner for first, inner in value.items()}
        if isinstance(value, dict):
            return {name: scaled(name, inner) for name, inner in value.items()}
        return tidy(value * ratio) if key in TIMES else value

    return {**scaled("", settings), "written_for": written_for}


def tidy(number: Any) -> Any:
    """A whole number as one, so that 90 and 90.0 are the same."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def is_schedule(value: Any) -> bool:
    """Whether a table says values by first epochs, which are numbers, rather than by names."""
    return isinstance(value, Mapping) and bool(value) and all(_is_number(key) for key in value)


def _is_number(key: Any) -> bool:
    try:
        float(key)
    except (TypeError, ValueError):
        return False
    return True


def _read_epochs(value: Any) -> float | None:
    """The number in text like "2 epochs"; None for what is no such text."""
    if not isinstance(value, str) or not value.endswith(" epochs"):
        return None
    number = value.removesuffix(" epochs")
    if not number.replace(".", "", 1).isdigit() or not float(number) > 0:
        raise ValueError(f"a time in epochs is written like '2 epochs', got {value!r}")
    return float(number)
