"""Taking a pack apart again: dense parameters in the model, and in the optimizer where they once were."""

import copy
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.storage.belonging import stop_marking
from regrow.storage.expanding import Owners, expanders_of, stop_expanding
from regrow.storage.pack import Pack, Slot


@dataclass(frozen=True)
class Group:
    """A parameter group as it was: the layers of the row that it holds, their seats in it, and the vector's name."""

    layers: tuple[int, ...]
    seats: tuple[int, ...]
    name: str


def unpack(model: nn.Module, optimizer: Optimizer, pack: Pack, group: Group) -> None:
    """Replace a pack by dense parameters, whose state is that of the values, and 0 elsewhere."""
    if not pack.is_held_by(model):
        return
    dense = []
    state = optimizer.state.pop(pack.values, {})
    for number, places in enumerate(pack.places):
        weight = places.spread(pack.split(pack.values.detach())[number])
        parameter = nn.Parameter(weight, pack.values.requires_grad)
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
    stop_marking(model)


def _owners(model: nn.Module, pack: Pack, number: int) -> Owners:
    return [
        (module, name)
        for module in model.modules()
        for name, slot in list(expanders_of(module).items())
        if isinstance(slot, Slot) and slot.pack is pack and slot.number == number
    ]


def _take_seats(optimizer: Optimizer, values: Tensor, dense: list[nn.Parameter], group: Group) -> None:
    for own in optimizer.param_groups:
        if any(parameter is values for parameter in own["params"]):
            own["params"][:] = [parameter for parameter in own["params"] if parameter is not values]
            for seat, parameter in sorted(zip(group.seats, dense, strict=True), key=lambda pair: pair[0]):
                own["params"].insert(seat, parameter)
