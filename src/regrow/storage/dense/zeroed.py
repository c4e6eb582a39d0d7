"""Whether `attach` set weights to 0 that a state, loaded afterwards, calls active."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from regrow.core.units import Layer


class Zeroed:
    """What `attach` left of weights that were not all 0 elsewhere, for as long as nobody touches them.

    Weights that were restored before are 0 wherever the state's masks are, and what is left of them lies in both
    topologies. Fresh ones are not, nor have those been left alone that were restored since.
    """

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Tensor], masks: Sequence[Tensor]) -> None:
        self._left = list(zip(layers, parameters, masks, strict=True))
        self._versions = [parameter._version for parameter in parameters]

    def check(self, masks: Mapping[str, Tensor]) -> None:
        """Refuse the masks of weights that were restored before attaching."""
        if [parameter._version for _, parameter, _ in self._left] != self._versions:
            return
        num_lost = 0
        for layer, parameter, own in self._left:
            theirs = masks[layer.name].to(own.device)
            if parameter.detach().masked_fill(own & theirs, 0).any():
                return
            num_lost += int((theirs & ~own).count_nonzero())
        if num_lost:
            raise ValueError(
                f"attach has set {num_lost:,} weights to 0 that this state calls active, because they were restored "
                "before it; restore them again, and give the state to attach(..., resume=state)"
            )
