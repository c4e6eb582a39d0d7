"""What a run is judged by on data it was not trained on: accuracy in percent, or bits per byte."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log


@dataclass(frozen=True)
class Score:
    """`per_loss`: so many of it is a loss of 1, for a score that is the loss in another unit; else it is a count."""

    key: str
    words: str
    unit: str
    digits: int
    is_lower_better: bool = False
    per_loss: float | None = None

    @property
    def title(self) -> str:
        """With its unit, for the head of a column or the side of a figure."""
        return f"{self.words}, {self.unit}" if self.unit else self.words

    def of(self, row: Mapping[str, float], part: str = "test_") -> float | None:
        """That of an epoch, on what was trained on or tested on; None where nobody noted it."""
        value = row.get(f"{part}accuracy" if self.per_loss is None else f"{part}loss")
        return value if value is None or self.per_loss is None else value * self.per_loss

    def number(self, value: float) -> str:
        return f"{value:.{self.digits}f}"

    def spread(self, mean: float, deviation: float | None) -> str:
        """
        >>> ACCURACY.spread(97.62, 0.104), ACCURACY.spread(97.62, None)
        ('97.62 ± 0.10', '97.62')
        """
        return self.number(mean) if deviation is None else f"{self.number(mean)} ± {self.number(deviation)}"

    def text(self, value: float) -> str:
        """
        >>> ACCURACY.text(98.664), BITS_PER_BYTE.text(1.25)
        ('98.66 %', '1.250 bits per byte')
        """
        return f"{self.number(value)} {self.unit or self.words}"


ACCURACY = Score("accuracy", "accuracy", "%", digits=2)
BITS_PER_BYTE = Score("bits_per_byte", "bits per byte", "", digits=3, is_lower_better=True, per_loss=1 / log(2))
