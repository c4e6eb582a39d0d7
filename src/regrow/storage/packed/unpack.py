"""Taking a pack apart again: dense parameters in the model, and in the optimizer where they once were."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.storage.computed_weights import Owners, expanders_of, stop_expanding
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.slot import Slot
from regrow.storage.packed.topology_tag import stop_marking


@dataclass(frozen=True)
class Group:
    """A parameter group as it was: the layers of the row that it holds, their seats in it, and the vector's name.

    `names` are those by which the optimizer knows the layers' parameters, if it does.
    """

    layers: tuple[int, ...]
    seats: tuple[int, ...]
    name: str
    names: tuple[str, ...] | None


def unpack(model: nn.Module, optimizer: Optimizer, pack: Pack, group: Group) -> None:
    """Replace a pack by dense parameters, whose state is that of the values, and 0 elsewhere."""
    if not pack.is_held_by(model):
        return
    dense = []
    state = optimizer.state.pop(pack.values, {})
    for number, places in enumerate(pack.places):
        weight = places.spread(pack.split(pack.values.detach())[number])
        parameter = nn.Parameter(weight, pack.values.requires_grad)
        if pack.values.grad is not None:
            parameter.grad = places.spread(pack.split(pack.values.grad)[number])
        for module, name in _owners(model, pack, number):
            stop_expanding(module, name, parameter)
        if state:
            optimizer.state[parameter] = {
                key: places.spread(pack.split(value)[number])
                if isinstance(value, Tensor) and value.shape == pack.values.shape
                else copy.deepcopy(value)
                for key, value in state.items()
            }
        dense.append(parameter)
    _take_seats(optimizer, pack.values, dense, group)
    pack.leave()
    stop_marking(model, pack)


def _owners(model: nn.Module, pack: Pack, number: int) -> Owners:
    return [
        (module, name)
        for module in model.modules()
        for name, slot in list(expanders_of(module).items())
        if isinstance(slot, Slot) and slot.pack is pack and slot.number == number
    ]


def _take_seats(optimizer: Optimizer, values: Tensor, dense: list[nn.Parameter], group: Group) -> None:
    for own in optimizer.param_groups:
        seat_of_values = next((seat for seat, parameter in enumerate(own["params"]) if parameter is values), None)
        if seat_of_values is not None:
            _insert(own["params"], seat_of_values, group.seats, dense)
            if group.names is not None and "param_names" in own:
                _insert(own["param_names"], seat_of_values, group.seats, group.names)


def _insert(things: list[Any], last: int, seats: Sequence[int], others: Sequence[Any]) -> None:
    """Put others in the place of a thing, each at a seat of its own."""
    del things[last]
    for seat, other in sorted(zip(seats, others, strict=True), key=lambda pair: pair[0]):
        things.insert(seat, other)
