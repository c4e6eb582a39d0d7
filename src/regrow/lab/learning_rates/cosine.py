"""Down along half a cosine (Loshchilov & Hutter, 2017)."""

from math import cos, pi
from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.learning_rates.learning_rate import Falling


@component
class Cosine(Falling):
    """Slowly at first and in the end."""

    name: ClassVar[str] = "cosine"

    def shape(self, done: float) -> float:
        return (1 + cos(pi * done)) / 2
