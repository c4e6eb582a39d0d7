"""Whether model, optimizer and sparsifier still belong together: each can be replaced behind the others' backs."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.names import named_parameters, unwrap
from regrow.storage.base import Storage

Place = tuple[dict[str, nn.Parameter | None], str, Tensor]
"""The parameters of a module, the name of one, and what should be there."""
Seat = tuple[int, int, Tensor]
"""A parameter group, a position in it, and what should be there."""


class Belonging:
    """Where the model, which is held weakly, and the optimizer keep the parameters that are sparse."""

    def __init__(self, model: nn.Module | None, optimizer: Optimizer, storage: Storage) -> None:
        self._model: Callable[[], nn.Module | None] = _nobody if model is None else weakref.ref(unwrap(model))
        self._optimizer = optimizer
        self.parameters = list(storage.parameters)
        names = {} if model is None else {id(parameter): name for name, parameter in named_parameters(model)}
        self._names = {id(parameter): names.get(id(parameter), "a weight") for parameter in self.parameters}
        self.places, self.seats = list(self._find_places()), list(self._find_seats())

    @property
    def model(self) -> nn.Module | None:
        """The model that was attached to, without its wrappers; None if nobody keeps it any more."""
        return self._model()

    def problem(self) -> str | None:
        """What is wrong; otherwise parameters that were only moved, to another module or position, are found again."""
        name = type(self._optimizer).__name__
        self.seats = list(self._find_seats())
        if left_out := self._first_without({id(parameter) for _, _, parameter in self.seats}):
            return (
                f"{name} does not hold {left_out} any more, which it trained sparsely; detach(), and attach to an "
                "optimizer that holds it, with start=sparse.masks()"
            )
        if replaced := self._first_without(self._in_model()):
            return (
                f"the model has another {replaced} than the one its optimizer trains sparsely; what replaces "
                f"parameters, as load_state_dict(assign=True) does, must come before {name} is built and attached, and "
                "sharding is not supported yet"
            )
        self.places = list(self._find_places())
        return None

    def check_other(self, other: Optimizer) -> None:
        """Refuse the step of another optimizer that trains these parameters, or what the model has in their stead."""
        if other is self._optimizer or _has_inside(other, self._optimizer):
            return
        held = {id(parameter) for group in other.param_groups for parameter in group["params"]}
        name = next((self._names[id(parameter)] for parameter in self.parameters if id(parameter) in held), None)
        if name is not None:
            raise RuntimeError(
                f"this {type(other).__name__} trains {name}, which is kept sparse in the steps of another "
                f"{type(self._optimizer).__name__}; step that one, or detach() and attach to this one with "
                "start=sparse.masks()"
            )
        if held & self._in_model() and (problem := self.problem()):
            raise RuntimeError(problem)

    def _first_without(self, those: set[int]) -> str | None:
        return next((self._names[id(parameter)] for parameter in self.parameters if id(parameter) not in those), None)

    def _in_model(self) -> set[int]:
        """All parameters that the model has; where it is gone, what its modules have in the places that are known."""
        model = self.model
        if model is not None:
            return {id(parameter) for parameter in model.parameters()}
        return {
            id(kept.get(name) if kept.get(name) is not None else parameter) for kept, name, parameter in self.places
        }

    def _find_places(self) -> Iterator[Place]:
        model = self.model
        for module in [] if model is None else model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in self._names:
                    yield module._parameters, name, parameter

    def _find_seats(self) -> Iterator[Seat]:
        for number, group in enumerate(self._optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) in self._names:
                    yield number, position, parameter


def _nobody() -> None:
    return None


def _has_inside(outer: Any, inner: Optimizer) -> bool:
    """Whether an optimizer is a wrapper of another, which makes the steps."""
    values = [
        some for value in vars(outer).values() for some in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return any(some is inner or (isinstance(some, Optimizer) and _has_inside(some, inner)) for some in values)
