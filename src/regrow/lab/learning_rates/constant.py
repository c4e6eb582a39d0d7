"""The same from the end of the warm-up to the end of the run."""

from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.learning_rates.learning_rate import Warmed


@component
class Constant(Warmed):
    """Its peak."""

    name: ClassVar[str] = "constant"

    def share(self, done: float) -> float:
        return 1.0
