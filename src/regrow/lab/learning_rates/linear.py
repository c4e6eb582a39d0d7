"""Down in a straight line."""

from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.learning_rates.learning_rate import Falling


@component
class Linear(Falling):
    """By as much in every step."""

    name: ClassVar[str] = "linear"

    def shape(self, done: float) -> float:
        return 1 - done
