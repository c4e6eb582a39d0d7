"""Points in time: written in epochs, used in steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

_TIMES = ("until", "begin")


@dataclass(frozen=True)
class Timetable:
    """Turns epochs of a training of `written_for` epochs into steps of one that lasts `num_steps`."""

    num_steps: int
    written_for: float
    steps_per_epoch: int

    def step(self, epoch: float) -> int:
        """
        >>> Timetable(num_steps=600, written_for=100, steps_per_epoch=60).step(25)
        150
        """
        return round(epoch / self.written_for * self.num_steps)

    def steps(self, schedule: Mapping[float, Any]) -> dict[int, Any]:
        """A schedule by first steps; where two fall on the same step the later one holds."""
        return {self.step(epoch): self.duration(value) for epoch, value in sorted(schedule.items())}

    def duration(self, value: Any) -> Any:
        """
        >>> Timetable(num_steps=600, written_for=100, steps_per_epoch=60).duration("2 epochs")
        12
        """
        if not isinstance(value, str) or not value.endswith(" epochs"):
            return value
        number = value.removesuffix(" epochs")
        if not number.replace(".", "", 1).isdigit() or not float(number) > 0:
            raise ValueError(f"a time in epochs is written like '2 epochs', got {value!r}")
        return max(1, self.step(float(number)))

    def method_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a method, as written, with steps in place of epochs."""
        made: dict[str, Any] = {}
        for key, value in given.items():
            if key in _TIMES and value is not None:
                made[key] = self.step(value)
            elif isinstance(value, Mapping) and all(isinstance(first, (int, float)) for first in value):
                made[key] = self.steps(value)
            else:
                made[key] = self.duration(value)
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
    return int(number) if number == int(number) else number
