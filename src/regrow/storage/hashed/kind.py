"""Hashed storage as a value, which the method Hashed brings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.methods.method import Method
from regrow.storage.base import Chosen, Start
from regrow.storage.computed_weights import leave_out_unfit
from regrow.storage.hashed.storage import HashedStorage, hash_weights


@dataclass(frozen=True)
class Hashed:
    """Positions share values; nothing is pruned, so that nothing is offered to methods that rewire."""

    name: ClassVar[str] = "hashed"
    offers: ClassVar[frozenset[str]] = frozenset()
    may_be_meta: ClassVar[bool] = False
    may_be_sharded: ClassVar[bool] = False

    def check(self, method: Method, how: str | Mapping[str, Tensor]) -> None:
        if how != "random":
            raise ValueError('the weights of a trained model are not shared ones; attach Hashed with start="random"')

    def fit(self, model: nn.Module, chosen: Chosen) -> Chosen:
        return leave_out_unfit(model, chosen, "hashed")

    def build(
        self, model: nn.Module, optimizer: Optimizer, chosen: Chosen, start: Start
    ) -> tuple[HashedStorage, Callable[[], None]]:
        return hash_weights(model, optimizer, chosen, start.counts, start.seed)
