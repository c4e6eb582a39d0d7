"""Dense storage as a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.first_topology import largest_places, random_places
from regrow.methods.method import NEEDS, Method
from regrow.storage.base import Chosen, Start
from regrow.storage.dense.storage import DenseStorage
from regrow.storage.optimizer_state import check_leaves_zeros_alone


@dataclass(frozen=True)
class Dense:
    """Weights stay where they are, with zeros, and a mask beside each tensor."""

    name: ClassVar[str] = "dense"
    offers: ClassVar[frozenset[str]] = frozenset(NEEDS)
    may_be_meta: ClassVar[bool] = False
    may_be_sharded: ClassVar[bool] = True

    def check(self, method: Method, how: str | Mapping[str, Tensor]) -> None:
        """Any method, and any beginning."""

    def fit(self, model: nn.Module, chosen: Chosen) -> Chosen:
        return chosen

    def build(
        self, model: nn.Module, optimizer: Optimizer, chosen: Chosen, start: Start
    ) -> tuple[DenseStorage, Callable[[], None]]:
        parameters = [parameter for _, parameter in chosen]
        check_leaves_zeros_alone(optimizer, parameters)
        storage = DenseStorage([layer for layer, _ in chosen], parameters, is_dense_step=start.is_dense_step)
        if isinstance(start.how, Mapping):
            storage.set_masks(start.how)
        elif list(start.counts) != [layer.num_units for layer in storage.layers]:
            storage.set_active(_first_places(storage, start))
        return storage, partial(storage.begin, optimizer, start.factors)


def _first_places(storage: DenseStorage, start: Start) -> list[Tensor]:
    """Of each chunk the places that are active first."""
    if storage.sharding is not None:
        if start.how == "magnitude":
            return storage.sharding.largest_places(storage.weights, start.counts)
        return storage.sharding.random_places(start.counts, start.seed)
    pairs = [(chunk, chunk.of(start.counts)) for chunk in storage.chunks]
    if start.how == "magnitude":
        return [largest_places(chunk, counts, chunk.of(storage.weights)) for chunk, counts in pairs]
    return [random_places(chunk, counts, start.seed) for chunk, counts in pairs]
