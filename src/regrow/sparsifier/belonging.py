"""Whether model, optimizer and sparsifier still belong together: each can be replaced behind the others' backs."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.names import named_parameters, unwrap
from regrow.distributed.wrappers import reshard
from regrow.storage.base import Storage

Places = tuple[list[dict[str, nn.Parameter | None]], list[str], list[Tensor]]
"""The parameters of modules, the name of one of each, and what should be there."""
Seats = tuple[list[int], list[int], list[Tensor]]
"""The numbers of parameter groups, a position in each, and what should be there."""


class Belonging:
    """Where the model, which is held weakly, and the optimizer keep the parameters that are sparse."""

    def __init__(self, model: nn.Module | None, optimizer: Optimizer, storage: Storage) -> None:
        self._model: Callable[[], nn.Module | None] = _nobody if model is None else weakref.ref(unwrap(model))
        self._optimizer = optimizer
        self.parameters = list(storage.parameters)
        names = {} if model is None else {id(parameter): name for name, parameter in named_parameters(model)}
        self._names = {id(parameter): names.get(id(parameter), "a weight") for parameter in self.parameters}
        self.places, self.seats = self._find_places(), self._find_seats()

    @property
    def model(self) -> nn.Module | None:
        """The model that was attached to, without its wrappers; None if nobody keeps it any more."""
        return self._model()

    def problem(self) -> str | None:
        """What is wrong; otherwise parameters that were only moved, to another module or position, are found again."""
        name = type(self._optimizer).__name__
        if self.model is not None:
            reshard(self.model)
        self.seats = self._find_seats()
        if left_out := self._first_without(set(map(id, self.seats[2]))):
            return (
                f"{name} does not hold {left_out} any more, which it trained sparsely; detach(), and attach to an "
                "optimizer that holds it, with start=sparse.masks()"
            )
        if replaced := self._first_without(self._in_model()):
            return (
                f"the model has another {replaced} than the one its optimizer trains sparsely; what replaces "
                f"parameters, as sharding and load_state_dict(assign=True) do, must come before {name} is built and "
                "attached"
            )
        self.places = self._find_places()
        return None

    def check_other(self, other: Optimizer) -> None:
        """Refuse the step of another optimizer that trains these parameters, or what the model has in their stead."""
        if self._optimizer in _with_inner(other):
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
        found = [(kept.get(name), parameter) for kept, name, parameter in zip(*self.places, strict=True)]
        return {id(parameter if other is None else other) for other, parameter in found}

    def _find_places(self) -> Places:
        model = self.model
        found: Places = [], [], []
        for module in [] if model is None else model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in self._names:
                    _append(found, module._parameters, name, parameter)
        return found

    def _find_seats(self) -> Seats:
        found: Seats = [], [], []
        for number, group in enumerate(self._optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) in self._names:
                    _append(found, number, position, parameter)
        return found


def _append(columns: tuple[list[Any], ...], *row: Any) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)


def _nobody() -> None:
    return None


def _with_inner(outer: Optimizer) -> list[Optimizer]:
    """An optimizer and, if it is a wrapper, those that make its steps."""
    found = [outer]
    for optimizer in found:
        for value in vars(optimizer).values():
            some = value if isinstance(value, (list, tuple)) else [value]
            found += [inner for inner in some if isinstance(inner, Optimizer) and inner not in found]
    return found
