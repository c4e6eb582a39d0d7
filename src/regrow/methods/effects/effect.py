"""What an effect is, and what it asks of a storage."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.quantities import Quantities
from regrow.core.row import Chunk

Fresh = Callable[[Tensor], Tensor]
"""What belongs to some positions of the row where no weight was yet, or is any more."""
Moves = Callable[[Quantities, float | Tensor], Tensor]
"""How far some units move at a learning rate."""


class Weights(Protocol):
    """The weights of the sparse layers, wherever they are stored, and tensors that lie beside them.

    What lies beside the weights is saved, copied and moved with them: it is all the state that an effect has.
    """

    @property
    def parameters(self) -> Sequence[Tensor]:
        """What the optimizer trains."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The parameters without autograd."""


@runtime_checkable
class RewirableWeights(Weights, Protocol):
    """Those of which some are active."""

    @property
    def active(self) -> Sequence[Tensor]:
        """Which entries of each parameter are active weights."""

    def split(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors like the parameters, as views of what belongs to each layer."""

    def lay_beside(self, name: str, dtype: torch.dtype | None, fresh: Fresh | None) -> None:
        """Begin a tensor with an entry for every weight that is stored, at first 0; of no dtype: as wide as a gradient.

        It is evidence, under its name. Units that go, or come, get what is `fresh`.
        """

    def beside(self, name: str) -> Sequence[Tensor]:
        """It, one tensor for each of the parameters."""

    def fill_beside(self, name: str, values: Callable[[Quantities], Tensor]) -> None:
        """Set every entry to a function of its unit; the weight of an inactive one is 0."""

    def add_to_active(self, moves: Moves, rates: Sequence[float]) -> None:
        """Move each active weight by a function of its unit and of the rate of its parameter."""

    def gradients(self) -> Sequence[Tensor] | None:
        """The dense gradients of this step, if they were kept."""

    def count(self) -> list[int]:
        """Active units of each layer."""

    def in_one_piece(self) -> tuple[Chunk, Callable[[str], Sequence[Tensor]]] | None:
        """The whole row on one GPU, where kernels may edit it in place: its chunk and tensors by name; else None."""

    def zero_inactive(self, optimizer: Optimizer) -> None:
        """Set inactive weights and their optimizer state to exactly 0."""


class Effect:
    """Something that happens in every step. What is not said here otherwise does nothing.

    A step is: backward, masking, `before_step`, the optimizer's own step, `after_step`, a rewiring if one is due, and
    after it `rewired`.
    """

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        """Begin on the weights of a network, or on those of its copy."""
        self._weights, self._optimizer, self._seed = weights, optimizer, seed

    def before_step(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """The gradients are masked; of the parameters numbered in `fresh` they are new ones since this was last called.

        `scale` is what they were multiplied by and will be divided by again.
        """

    def after_step(self, step: int, is_replayed: bool) -> bool:
        """The optimizer has made a step, perhaps in a captured graph; whether the effect also did the rewiring."""
        return False

    def rewired(self, step: int) -> None:
        """The network was rewired after a step; what grew is there, with the state it begins with."""

    def capture(self) -> None:
        """A step is being captured into a graph."""

    def totals(self) -> tuple[int, list[int]] | None:
        """The last step in which the effect rewired, and how many units of each layer since this was last asked."""
        return None

    def restart(self, step: int, seed: int) -> None:
        """Go on after a step of a run that was saved; what lies beside the weights is there already."""
        self._seed = seed

    def renew(self) -> None:
        """The weights are others than before, and so is where they are: they were read from a file."""


def rewirable(weights: Weights) -> RewirableWeights:
    """The weights of a method that needs something of them which only rewirable ones offer."""
    assert isinstance(weights, RewirableWeights)
    return weights


def rates_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[float]:
    """The learning rate of each parameter."""
    rate = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for parameter in parameters:
        if id(parameter) not in rate:
            raise RuntimeError(
                f"the optimizer no longer holds a sparse parameter, of shape {tuple(parameter.shape)}; to leave it "
                "alone call detach() and attach again"
            )
    return [rate[id(parameter)] for parameter in parameters]
