"""Whether `attach` set weights to 0 that a state, loaded afterwards, calls active."""

from collections.abc import Callable, Sequence

from torch import Tensor

from regrow.core.units import Layer
from regrow.storage.check_masks import num_strays


class Zeroed:
    """What `attach` left of weights that were not all 0 elsewhere, for as long as nobody touches them.

    Weights that were restored before are 0 wherever the state's masks are: no more of them were set to 0 than the state
    calls active, and what is left lies in both topologies. Fresh ones are not, nor have those been left alone that were
    restored since.
    """

    def __init__(
        self, layers: Sequence[Layer], parameters: Sequence[Tensor], masks: Sequence[Tensor], num_zeroed: int
    ) -> None:
        self._left, self._num_zeroed = list(zip(layers, parameters, masks, strict=True)), num_zeroed
        self._versions = [parameter._version for parameter in parameters]

    def check(self, masks: Sequence[Tensor], sum_up: Callable[[int], int]) -> None:
        """Refuse the masks of weights that were restored before attaching; `sum_up` adds what all ranks say."""
        is_touched, num_lost = sum_up(int(self._is_touched(masks))), sum_up(self._count_lost(masks))
        if num_lost >= self._num_zeroed and not is_touched:
            raise ValueError(
                f"attach has set {num_lost:,} weights to 0 that this state calls active, because they were restored "
                "before it; restore them again, and give the state to attach(..., resume=state)"
            )

    def _is_touched(self, masks: Sequence[Tensor]) -> bool:
        """Whether somebody set the weights since, or what is left of them does not lie in both topologies."""
        return [parameter._version for _, parameter, _ in self._left] != self._versions or any(
            num_strays(parameter.detach(), own & theirs.to(own.device))
            for (_, parameter, own), theirs in zip(self._left, masks, strict=True)
        )

    def _count_lost(self, masks: Sequence[Tensor]) -> int:
        pairs = zip(self._left, masks, strict=True)
        return sum(int((theirs.to(own.device) & ~own).count_nonzero()) for (_, _, own), theirs in pairs)
