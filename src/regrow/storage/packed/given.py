"""Weights that come with their places, as from a file: packs for a model that is used and not trained."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from regrow.core.units import Layer
from regrow.kernels.cpu.choose import Choices
from regrow.storage.base import Chosen
from regrow.storage.packed.build import device_of, let_compute, name_of_vector
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.places import Places, places_of_ascending
from regrow.storage.packed.topology_tag import start_marking


class Given(Protocol):
    """The active weights of a layer: values, and positions along the tensor's own indices, ascending."""

    @property
    def values(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor: ...


def placed(layer: Layer, given: Given, device: torch.device) -> tuple[Places, Tensor]:
    """Places and values in the order in which they are stored."""
    places, order = places_of_ascending(layer, given.positions.to(device))
    return places, given.values.to(device).index_select(0, order)


def pack_given(model: nn.Module, chosen: Chosen, read: Callable[[str], Given], choices: Choices) -> None:
    """Put one vector of values for each kind of parameters into their place.

    Layers are read by name, one after the other, and none is dense in the meantime.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[Layer, nn.Parameter]]] = {}
    for layer, parameter in chosen:
        kinds.setdefault((device_of(parameter), parameter.dtype), []).append((layer, parameter))
    packs = []
    for number, ((device, dtype), own) in enumerate(kinds.items()):
        pairs = [placed(layer, read(layer.name), device) for layer, _ in own]
        vector = nn.Parameter(torch.cat([values.to(dtype) for _, values in pairs]), requires_grad=False)
        name = name_of_vector(model, number)
        packs.append(Pack({name: vector}, name, [places for places, _ in pairs], choices))
    for pack, own in zip(packs, kinds.values(), strict=True):
        pack.enter(model)
        let_compute(model, [parameter for _, parameter in own], pack)
    start_marking(model)
