"""What a sparsifier asks of a storage, whatever its weights look like in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.evidence import Evidence, Units
from regrow.core.rewire import Plan
from regrow.core.row import Tally
from regrow.core.units import Layer
from regrow.methods.effects.effect import Fresh, RewirableWeights, Weights
from regrow.methods.method import Method

Chosen = Sequence[tuple[Layer, nn.Parameter]]
"""The sparse layers of a model with their parameters."""


@dataclass(frozen=True)
class Start:
    """The first topology: "random", "magnitude", or masks by layer name; and how many units of each layer it has.

    `factors`: what the first weights of each layer are multiplied by. `is_dense_step`: whether the optimizer's steps
    are to be those of all places.
    """

    how: str | Mapping[str, Tensor]
    counts: Sequence[int]
    factors: Sequence[float]
    seed: int
    is_dense_step: bool = False


@runtime_checkable
class StorageKind(Protocol):
    """A storage as a value: what `attach(..., storage=...)` takes, before there is a model."""

    name: ClassVar[str]
    offers: ClassVar[frozenset[str]]
    """Of what methods may need, what it can give."""
    may_be_meta: ClassVar[bool]
    """Whether layers may be on the meta device, with no values yet."""
    may_be_sharded: ClassVar[bool]
    """Whether layers may be spread over ranks."""

    def check(self, method: Method, how: str | Mapping[str, Tensor]) -> None:
        """Refuse a method, or a first topology, for another reason than what the method needs."""

    def fit(self, model: nn.Module, chosen: Chosen) -> Chosen:
        """Those of a model's usual layers that can be stored so."""

    def build(
        self, model: nn.Module, optimizer: Optimizer, chosen: Chosen, start: Start
    ) -> tuple["Storage", Callable[[], None]]:
        """A storage of the layers, and what lets model and optimizer use it; nothing is changed before that is called.

        In between a saved state may be loaded into the storage.
        """


class Storage(Weights, Protocol):
    """Where the weights of the sparse layers live: how they are saved, copied and let go."""

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def index_bytes(self) -> int:
        """What lies beside the weights to say where they are: masks, positions, signs."""

    def count(self) -> list[int]:
        """Active units of each layer."""

    def state(self) -> dict[str, Any]:
        """What `load` needs to go on, of the same keys and shapes from the first step to the last."""

    def check(self, state: Mapping[str, Any]) -> list[int]:
        """Refuse a state that does not fit these layers; the active units of each layer that it has."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state that was checked; a sparsifier's, with more in it."""

    def copy(self, memo: dict[int, Any]) -> "Storage":
        """The same on the copied parameters; effects and `load` bring the rest."""

    def expand(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Tensors like the parameters as dense weights would be, by layer name."""

    def release(self, optimizer: Optimizer) -> None:
        """Leave the model and the optimizer with ordinary dense parameters."""


@runtime_checkable
class Rewirable(RewirableWeights, Storage, Protocol):
    """A storage with places to prune and to grow."""

    def masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name."""

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        """Of each layer its weights and their optimizer state, dense, for checks."""

    def carry(self, carried: "Carried") -> None:
        """Let tensors change with the weights from now on, as long as somebody holds them."""

    def follow(self) -> None:
        """Follow the parameters if they were moved to another device or memory format since."""

    def check_weights(self) -> None:
        """Refuse weights that are not those of the topology."""

    def mask_gradients(self) -> None:
        """Make gradients ready for the optimizer: those of inactive weights are exactly 0."""

    def is_masked(self, i: int) -> bool:
        """Whether the gradient of parameter i is still the one that was made ready, if perhaps in another tensor."""

    def keep_gradients(self, kinds: frozenset[str], fresh: Sequence[int], scale: Tensor | None) -> None:
        """Keep the gradients of a step, as they are before L1 and clipping, until it is finished.

        "gradient": those of active weights; "free_gradient": of free places. Of the parameters numbered in `fresh` it
        is a new gradient, else one to which something was added since this was last called. Divided by `scale`.
        """

    def drop_gradients(self) -> None:
        """They have served."""

    def evidence(self, tally: Tally, step: int) -> Evidence:
        """The row as it is now, for the rules."""

    def apply(self, plan: Plan, evidence: Evidence, optimizer: Optimizer) -> None:
        """Carry out a rewiring in place."""


@runtime_checkable
class Foresighted(Protocol):
    """A storage that keeps no dense gradient, and must be told before the backward pass what growth will look for."""

    def expect_growth(
        self, counts: Sequence[int], score: Callable[[Tensor], Tensor], among: Units | None = None
    ) -> None:
        """How many places of each layer may grow by the gradients of the coming step, and what they are compared by.

        Places `among` which growth will look are all whose gradients it needs; without them, it is all free ones.
        """


@dataclass(eq=False)
class Carried:
    """Tensors like the parameters that become 0, as they do, where a unit ends; saved by whoever made them."""

    tensors: list[Tensor]


@dataclass(eq=False)
class Beside(Carried):
    """Those that are a storage's own to save, and what belongs to units that begin or end."""

    fresh: Fresh | None


def beside(weights: Sequence[Tensor], dtype: torch.dtype | None, fresh: Fresh | None) -> Beside:
    """All 0; of no dtype: as wide as a gradient that is kept."""
    return Beside([torch.zeros_like(own, dtype=dtype or dtype_of_gradient(own)) for own in weights], fresh)


def dtype_of_gradient(weight: Tensor) -> torch.dtype:
    """That of gradients which are kept."""
    return torch.promote_types(weight.dtype, torch.float32)


def by_name(layers: Sequence[Layer], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Copies of one tensor per layer, in logical order."""
    return {
        layer.name: tensor.clone(memory_format=torch.contiguous_format)
        for layer, tensor in zip(layers, tensors, strict=True)
    }


DAMAGED = "the state contradicts itself; it was changed or damaged after it was saved"


def check_storage(state: Mapping[str, Any], storage: str) -> None:
    """Refuse the state of another storage."""
    kind = state.get("storage")
    if kind != storage:
        raise ValueError(f"the state is one of {kind} storage; attach with storage={kind!r} to load it")


def check_kind(state: Mapping[str, Any], storage: str, keys: set[str]) -> None:
    """Refuse the state of another storage, or one with other keys."""
    check_storage(state, storage)
    if wrong := (keys | {"storage"}) ^ set(state):
        raise ValueError(f"{DAMAGED}: {min(wrong)!r} is unknown or missing")


def check_like(found: object, like: Tensor, what: str) -> None:
    """Refuse what is no tensor of the same shape and kind of numbers; the precision may be another."""
    fits = isinstance(found, Tensor) and found.shape == like.shape
    if not isinstance(found, Tensor) or not fits or found.is_floating_point() != like.is_floating_point():
        told = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{DAMAGED}: its {what} is {told}, not {like.dtype} {tuple(like.shape)}")


def check_keys(found: object, keys: Iterable[str], what: str) -> None:
    """Refuse what is no mapping with just these keys."""
    if not isinstance(found, Mapping) or set(found) != set(keys):
        raise ValueError(f"{DAMAGED}: its {what} does not say something of each of {sorted(keys)[:5]}")


def nothing_called(name: str) -> Exception:
    """What a rule is told that asks for evidence which its method did not."""
    return ValueError(f"there is no {name} to look at; a method that goes by it says so in its `needs`")
