"""Learning rates by first epoch, as the paper gives them; in settings `optimizer.lr`."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Self

from regrow.core.schedules import value_at
from regrow.lab.config.component import component
from regrow.lab.config.schedule import Timetable, check_schedule, read_schedule
from regrow.lab.learning_rates.learning_rate import LearningRate, Rates
from regrow.methods.method import is_number


@component
class Table(LearningRate):
    """A number, or {first epoch: rate}; epochs are those of a training of `written_for` epochs."""

    name: ClassVar[str] = "table"

    values: dict[float, float] = field(default_factory=lambda: {0: 0.1})

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        rates = read_schedule("optimizer.lr", given.get("values", {0: 0.1}))
        whole = {first: float(rate) if type(rate) is int else rate for first, rate in rates.items()}
        return super().read({**given, "values": whole})

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def check(self) -> None:
        for rate in self.values.values():
            if not is_number(rate) or rate < 0:
                raise ValueError(f"optimizer.lr must be numbers >= 0, got {rate!r}")

    def check_against(self, written_for: float) -> None:
        check_schedule("optimizer.lr", self.values, written_for)

    def rates(self, timetable: Timetable, density: float) -> Rates:
        by_step = timetable.steps(self.values)
        return lambda step: value_at(by_step, step)
