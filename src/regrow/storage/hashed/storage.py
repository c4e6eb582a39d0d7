"""Hashed storage: a layer's parameter is a short vector of values, which its positions share.

The vector takes the dense parameter's place under the same name, in the module, in the optimizer's group and in
`model.state_dict()`, so that gradient and optimizer state are as short as it is. `module.weight` becomes an attribute
that is computed: reading it expands the values, writing into what was read changes nothing, setting it is an error.
Only autograd holds the dense weight, from a layer's forward pass to its backward pass.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.units import Layer
from regrow.storage.base import Chosen, check_kind
from regrow.storage.computed_weights import (
    Owners,
    check_replaceable,
    expand_by,
    owners_of,
    start_expanding,
    stop_expanding,
)
from regrow.storage.hashed.sharing import Sharing
from regrow.storage.optimizer_state import Constants, constant_state, put_in_place


class HashedStorage:
    """The value vectors, the modules that expand them, and how.

    Everything is active: there are no masks and nothing to zero.
    """

    def __init__(
        self,
        sharings: Sequence[Sharing],
        parameters: Sequence[nn.Parameter],
        owners: Sequence[Owners],
        first_states: Sequence[Constants],
    ) -> None:
        self.parameters = list(parameters)
        self._sharings = list(sharings)
        self._owners = list(owners)
        self._first_states = list(first_states)

    def take_over(self, optimizer: Optimizer, parameters: Sequence[Tensor], owners: Sequence[Owners]) -> None:
        """Put the vectors in the place of dense parameters."""
        self._owners = list(owners)
        for i, (sharing, dense) in enumerate(zip(self._sharings, parameters, strict=True)):
            put_in_place(optimizer, dense, self.parameters[i], self._first_states[i])
            for module, name in self._owners[i]:
                start_expanding(module, name, self.parameters[i], sharing, "Hashed")

    @property
    def layers(self) -> list[Layer]:
        return [sharing.layer for sharing in self._sharings]

    @property
    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    @property
    def index_bytes(self) -> int:
        return 0  # computed anew wherever they are needed

    def count(self) -> list[int]:
        return [sharing.num_values for sharing in self._sharings]

    def state(self) -> dict[str, Any]:
        """The seed says the rest."""
        return {"storage": "hashed", "counts": tuple(self.count())}

    def check(self, state: Mapping[str, Any]) -> list[int]:
        check_kind(state, "hashed", {"counts"})
        if not isinstance(state["counts"], Sequence) or list(state["counts"]) != self.count():
            raise ValueError(
                "the state has other numbers of shared values; attach with the same layers, sparsity and distribution"
            )
        return self.count()

    def load(self, state: Mapping[str, Any]) -> None:
        """Share values as the run that was saved did."""
        for i, (sharing, owners) in enumerate(zip(self._sharings, self._owners, strict=True)):
            self._sharings[i] = replace(sharing, key=_key(state["seed"], i))
            for module, name in owners:
                expand_by(module, name, self._sharings[i])

    def copy(self, memo: dict[int, Any]) -> "HashedStorage":
        parameters, owners = copy.deepcopy((self.parameters, self._owners), memo)
        return HashedStorage(self._sharings, parameters, owners, self._first_states)

    def expand(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        pairs = zip(self._sharings, tensors, strict=True)
        return {sharing.layer.name: sharing.expand(values) for sharing, values in pairs}

    def release(self, optimizer: Optimizer) -> None:
        """Put dense weights back. What the optimizer remembers of a shared value says nothing of one position's."""
        for i, (sharing, owners) in enumerate(zip(self._sharings, self._owners, strict=True)):
            values = self.parameters[i]
            if owners:
                dense = nn.Parameter(sharing.expand(values.detach()), values.requires_grad)
                for module, name in owners:
                    stop_expanding(module, name, dense)
                put_in_place(optimizer, values, dense, self._first_states[i])
                self.parameters[i] = dense
        self._owners = [[] for _ in self._owners]


def hash_weights(
    model: nn.Module, optimizer: Optimizer, chosen: Chosen, num_values: Sequence[int], seed: int
) -> tuple[HashedStorage, Callable[[], None]]:
    """Vectors of values, and what puts them in the place of dense parameters; refused if one cannot be replaced."""
    layers, parameters = [layer for layer, _ in chosen], [parameter for _, parameter in chosen]
    owners = [owners_of(model, parameter) for parameter in parameters]
    check_replaceable(model, layers, owners, "hashed")
    first_states = [constant_state(optimizer, parameter) for parameter in parameters]
    sharings = [
        Sharing(layer, count, _key(seed, i)) for i, (layer, count) in enumerate(zip(layers, num_values, strict=True))
    ]
    pairs = zip(sharings, parameters, strict=True)
    vectors = [nn.Parameter(sharing.first_values(dense.detach())) for sharing, dense in pairs]
    storage = HashedStorage(sharings, vectors, [[] for _ in vectors], first_states)
    return storage, partial(storage.take_over, optimizer, parameters, owners)


def _key(seed: int, layer: int) -> int:
    return random.key(seed, 0, layer)
