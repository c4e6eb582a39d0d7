"""What every learning rate of the lab is made of."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from regrow.lab.config.component import Component
from regrow.lab.config.schedule import Timetable
from regrow.methods.method import is_number, is_whole

Rates = Callable[[int], float]
"""The learning rate of each step, which count from 0."""
SCALES: dict[str, Callable[[float], float]] = {
    "none": lambda density: 1.0,
    "inverse_sqrt": lambda density: density**-0.5,
    "inverse": lambda density: 1 / density,
}
"""By how much the peak is higher where only a part of the weights is there."""


class LearningRate(Component):
    """Makes the learning rates of a run."""

    kind: ClassVar[str] = "learning_rate"

    @abstractmethod
    def rates(self, timetable: Timetable, density: float) -> Rates:
        """Those of a run, with this share of its sparse layers' weights active in the end."""

    def check_against(self, written_for: float) -> None:
        """Refuse points in time that a run which schedules are written for does not have."""


@dataclass(frozen=True, kw_only=True)
class Warmed(LearningRate):
    """Up to a peak in a straight line, in `warmup` steps, and then a share of that.

    `scale`: "none", "inverse_sqrt" or "inverse": the peak is so many times higher in a sparse network of this density.
    """

    peak: float
    warmup: int = 0
    scale: str = "none"

    def check(self) -> None:
        if not is_number(self.peak) or self.peak <= 0:
            raise ValueError(f"learning_rate.peak must be a number > 0, got {self.peak!r}")
        if not is_whole(self.warmup) or self.warmup < 0:
            raise ValueError(f"learning_rate.warmup must be a whole number of steps >= 0, got {self.warmup!r}")
        if self.scale not in SCALES:
            raise ValueError(f"learning_rate.scale must be one of {', '.join(SCALES)}, got {self.scale!r}")

    @abstractmethod
    def share(self, done: float) -> float:
        """Of the peak, when so much (0 to 1) of the time after warming up is over."""

    def rates(self, timetable: Timetable, density: float) -> Rates:
        peak, num_steps = self.peak * SCALES[self.scale](density), timetable.num_steps
        if self.warmup >= num_steps:
            raise ValueError(f"learning_rate.warmup is {self.warmup} steps of a training of {num_steps}; warm up less")

        def rate(step: int) -> float:
            if step < self.warmup:
                return peak * (step + 1) / self.warmup
            return peak * self.share((step - self.warmup) / (num_steps - self.warmup))

        return rate


@dataclass(frozen=True, kw_only=True)
class Falling(Warmed):
    """Down to `floor` times the peak at the end."""

    floor: float = 0.0

    def check(self) -> None:
        super().check()
        if not is_number(self.floor) or not 0 <= self.floor <= 1:
            raise ValueError(f"learning_rate.floor must be a share of the peak, in [0, 1], got {self.floor!r}")

    @abstractmethod
    def shape(self, done: float) -> float:
        """Where it is between floor (0) and peak (1)."""

    def share(self, done: float) -> float:
        return self.floor + (1 - self.floor) * self.shape(done)
