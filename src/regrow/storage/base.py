"""What a sparsifier asks of a storage, whatever its weights look like in memory."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.rewire import Plan
from regrow.core.row import Stretch
from regrow.core.units import Layer
from regrow.kernels.gpu.deepr_walk import Walk
from regrow.methods.method import Method


class Storage(Protocol):
    """Where the weights of the sparse layers live: asked in every step, and to save, copy and take off a sparsifier."""

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def parameters(self) -> Sequence[Tensor]:
        """What the optimizer trains."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The parameters without autograd."""

    @property
    def index_bytes(self) -> int:
        """What lies beside the weights to say where they are: masks, positions, signs."""

    def follow(self) -> None:
        """Follow the parameters if they were moved to another device or memory format since."""

    def count(self) -> list[int]:
        """Active units of each layer."""

    def named_masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name, where there are any."""

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        """Of each layer its weights and their optimizer state, dense, for checks; where positions are active or not."""

    def zero_inactive(self, optimizer: Optimizer) -> None:
        """Set inactive weights and their optimizer state to exactly 0."""

    def mask_gradients(self) -> None:
        """Set the gradients of inactive weights to exactly 0."""

    def is_masked(self, i: int) -> bool:
        """Whether the gradient of parameter i is 0 at all inactive places already."""

    def state(self) -> dict[str, Any]:
        """What `load` needs to go on: "masks" and "companions", in the layers' own shapes."""

    def check(self, state: Mapping[str, Any], keeps_budget: bool) -> None:
        """Refuse a sparsifier's state that does not fit these layers."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a sparsifier's state that was checked."""

    def copy(self, memo: dict[int, Any]) -> "Storage":
        """The same on the copied parameters; `load` brings the rest."""

    def release(self, optimizer: Optimizer) -> None:
        """Leave the model and the optimizer with ordinary dense parameters."""


class RewirableStorage(Storage, Protocol):
    """A storage with places to prune and to grow."""

    companions: dict[str, list[Tensor]]

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Layers among which weights may move."""

    def expect_growth(self, wanted: Sequence[int]) -> None:
        """How many places of each layer may grow by the gradients of the coming step."""

    def keep_gradients(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """Keep the dense gradients, as they are before masking, for growth."""

    def fold_gradients(self, memory: float) -> None:
        """Take the kept gradients into their running mean."""

    def fix_signs(self, seed: int) -> None:
        """Give every active place the sign of its weight, and one at random to the others."""

    def walk(self, method: Method, rates: Sequence[float], step: int, seed: int) -> None:
        """Let the active weights drift as the method says."""

    def make_walk(self, last: Walk | None) -> Walk | None:
        """What walks and rewires on a GPU without the host, the last one if it still fits; None where none does."""

    def stretches(self, counts: Sequence[int]) -> list[Stretch]:
        """The row as it is now, for the rules."""

    def apply(self, plan: Plan, optimizer: Optimizer) -> None:
        """Carry out a rewiring in place."""


def by_name(layers: Sequence[Layer], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Copies of one tensor per layer, in logical order."""
    return {
        layer.name: tensor.clone(memory_format=torch.contiguous_format)
        for layer, tensor in zip(layers, tensors, strict=True)
    }
