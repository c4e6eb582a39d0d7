"""What an optimizer remembers of the gradients of each weight: its moments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Of a parameter group, by their names in the optimizer's state, with the decay of each.

    `first`: means of gradients that updates go by. `second`: means of squared gradients; of decay 1 where they are
    added up, or the largest is kept. `others`: what else has an entry for every weight. `is_corrected`: whether updates
    depend on the number of steps, as means that begin at 0 are too small at first. `decays_apart`: whether weight decay
    is no part of the gradient. `settings`: where the group says what a decay is, and at which place of a tuple.
    """

    first: Mapping[str, float]
    second: Mapping[str, float]
    others: frozenset[str]
    is_corrected: bool
    decays_apart: bool
    settings: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)

    def of(self, group: Mapping[str, Any]) -> "Moments":
        """With the decays that the group has now: schedulers change them, and so do states that are loaded."""

        def now(name: str, decay: float) -> float:
            if name not in self.settings:
                return decay
            setting, place = self.settings[name]
            return float(group[setting] if place is None else group[setting][place])

        first, second = ({name: now(name, own[name]) for name in own} for own in (self.first, self.second))
        return replace(self, first=first, second=second)

    @property
    def first_decay(self) -> float:
        return next(iter(self.first.values()), 0.0)

    @property
    def second_decay(self) -> float | None:
        """That of a mean of squares; None where there is only a sum."""
        return next((decay for decay in self.second.values() if decay < 1), None)


def own_share(
    moments: Moments, whole: Sequence[Tensor], second: Tensor, step: float | Tensor | None, eps: float
) -> Tensor:
    """What of its update a weight of some age should make, where the optimizer corrects as for the age of all, `step`.

    An update is m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps); it should be with its age for t. `whole`: how much of a
    mean of gradients, and of their squares, there is at that age, 1 - b^t. `second` is v.
    """
    assert moments.second_decay is not None
    of_first, of_second = whole
    root = second.sqrt()
    divisor = root / of_second.sqrt() + eps
    if not moments.is_corrected or step is None:
        return (root + eps) / divisor / of_first
    all_first, all_second = 1 - moments.first_decay**step, 1 - moments.second_decay**step
    return (root / all_second**0.5 + eps) / divisor * (all_first / of_first)
