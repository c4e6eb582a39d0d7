"""From dense parameters to packs: the first topology, the first values, and who holds the vector."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.first_topology import largest_places, random_places
from regrow.core.names import unwrap
from regrow.core.row import cut_into_chunks
from regrow.core.selections import positions_of
from regrow.core.units import Layer
from regrow.kernels.cpu.choose import Choices
from regrow.storage.base import Chosen, Start
from regrow.storage.computed_weights import check_replaceable, expanders_of, owners_of, start_expanding
from regrow.storage.optimizer_state import Constants, constant_state, put_in_place
from regrow.storage.packed.layers import forward_for
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.places import Places, places_of_units
from regrow.storage.packed.storage import PackedStorage
from regrow.storage.packed.topology_tag import start_marking
from regrow.storage.packed.unpack import Group

Init = Callable[[str, tuple[int, ...], int, torch.Generator], Tensor]
_NAME = "packed_values"


def first_units(chosen: Chosen, start: Start) -> list[Tensor]:
    """The active units of each layer at the start."""
    found: list[Tensor] = []
    for chunk in cut_into_chunks([layer for layer, _ in chosen], [device_of(parameter) for _, parameter in chosen]):
        counts = chunk.of(start.counts)
        if isinstance(start.how, Mapping):
            found += [positions_of(layer.reduce(start.how[layer.name].to(chunk.device))) for layer in chunk.layers]
            continue
        if start.how == "magnitude":
            places = largest_places(chunk, counts, [parameter.detach() for _, parameter in chunk.of(chosen)])
        else:
            places = random_places(chunk, counts, start.seed)
        parts = torch.split(places, list(counts))
        found += [part - offset for part, offset in zip(parts, chunk.offsets, strict=False)]
    return found


def device_of(parameter: Tensor) -> torch.device:
    """Where the values of a parameter will be; for one on the meta device where new tensors are made."""
    return torch.get_default_device() if parameter.is_meta else parameter.device


def pack_weights(
    model: nn.Module, optimizer: Optimizer, chosen: Chosen, start: Start, init: Init | None, choices: Choices
) -> tuple[PackedStorage, Callable[[], None]]:
    """One vector of values for each group, and what puts it in the place of the group's dense parameters."""
    model, parameters = unwrap(model), [parameter for _, parameter in chosen]
    units = first_units(chosen, start)
    groups = _groups(model, optimizer, parameters)
    states = [_common_state(optimizer, [parameters[i] for i in group.layers]) for group in groups]
    packs = []
    for group in groups:
        places, pieces = [], []
        for i in group.layers:
            own, order = places_of_units(chosen[i][0], units[i])
            places.append(own)
            generator = torch.Generator().manual_seed(random.key(start.seed, 0, i, 1))
            values = _first_values(*chosen[i], units[i].index_select(0, order), generator, init)
            pieces.append(values if start.factors[i] == 1 else values * start.factors[i])
        vector = nn.Parameter(torch.cat(pieces))
        vector.grad = _collect([parameters[i].grad for i in group.layers], places, vector)
        packs.append(Pack({group.name: vector}, group.name, places, choices))

    def take_over() -> None:
        for group, pack, state in zip(groups, packs, states, strict=True):
            pack.enter(model)
            _hand_over(model, optimizer, [parameters[i] for i in group.layers], pack, state)
        start_marking(model)

    return PackedStorage(model, packs, groups), take_over


def check_packable(model: nn.Module, optimizer: Optimizer, chosen: Chosen) -> None:
    """Refuse what cannot be packed, before anything is drawn or changed."""
    layers, parameters = [layer for layer, _ in chosen], [parameter for _, parameter in chosen]
    if single := next((layer.name for layer in layers if not layer.shape), None):
        raise ValueError(f"{single} is a single number, which cannot be packed; leave it out of layers")
    check_replaceable(model, layers, [owners_of(model, parameter) for parameter in parameters], "packed")
    for group in _groups(unwrap(model), optimizer, parameters):
        kinds = {(device_of(parameters[i]), parameters[i].dtype) for i in group.layers}
        if len(kinds) > 1:
            raise ValueError(
                "the sparse layers of a parameter group become one vector, but these differ in device or dtype "
                f"({', '.join(sorted(map(str, kinds)))}); give each kind a parameter group of its own"
            )


def _groups(model: nn.Module, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> list[Group]:
    """The parameter groups that hold any of the parameters."""
    number = {id(parameter): i for i, parameter in enumerate(parameters)}
    groups: list[Group] = []
    for held in optimizer.param_groups:
        ours = sorted((number[id(p)], seat) for seat, p in enumerate(held["params"]) if id(p) in number)
        if ours:
            name = name_of_vector(model, len(groups))
            seats = tuple(seat for _, seat in ours)
            names = held.get("param_names")
            own_names = None if names is None else tuple(names[seat] for seat in seats)
            groups.append(Group(tuple(i for i, _ in ours), seats, name, own_names))
    return groups


def name_of_vector(model: nn.Module, number: int) -> str:
    """What the vector of a pack is called in a model."""
    name = f"{_NAME}_{number}" if number else _NAME
    while hasattr(model, name):
        name = f"_{name}"
    return name


def _common_state(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Constants:
    """What a fresh optimizer remembers of some parameters, of all the same."""
    first, *others = [constant_state(optimizer, parameter) for parameter in parameters]
    if any(other != first for other in others):
        raise ValueError(
            f"{type(optimizer).__name__} remembers different things of the layers of one group; attach right after "
            "building the optimizer"
        )
    return first


def _first_values(
    layer: Layer, parameter: Tensor, units: Tensor, generator: torch.Generator, init: Init | None
) -> Tensor:
    """The weights a layer has at some places; on the meta device, where it has none, new ones."""
    if not parameter.is_meta:
        return layer.flatten(parameter.detach()).index_select(0, units)
    values = (init or draw_as_torch_does)(layer.name, layer.shape, len(units), generator)
    if not isinstance(values, Tensor) or values.shape != (len(units),):
        raise ValueError(f"init must give {len(units)} values for {layer.name}, as a tensor of one dimension")
    return values.to(units.device, parameter.dtype)


def _collect(gradients: Sequence[Tensor | None], places: Sequence[Places], values: Tensor) -> Tensor | None:
    """What is left of gradients that nobody has used yet."""
    if all(gradient is None for gradient in gradients):
        return None
    pairs = zip(gradients, places, strict=True)
    return torch.cat([values.new_zeros(own.count) if dense is None else own.collect(dense) for dense, own in pairs])


def draw_as_torch_does(name: str, shape: tuple[int, ...], count: int, generator: torch.Generator) -> Tensor:
    """Some weights of a linear or convolution layer as torch draws all of them: uniform within 1/sqrt(fan in)."""
    bound = prod(shape[1:]) ** -0.5
    return torch.empty(count, device=generator.device).uniform_(-bound, bound, generator=generator)


def let_compute(model: nn.Module, parameters: Sequence[nn.Parameter], pack: Pack) -> None:
    """Let the modules that have some dense parameters compute from the layers of a pack instead."""
    for number, dense in enumerate(parameters):
        for module, name in owners_of(model, dense):
            forward = forward_for(module, {name, *expanders_of(module)})
            start_expanding(module, name, None, pack.slot(number), "Packed", forward)


def _hand_over(
    model: nn.Module,
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    pack: Pack,
    state: Constants,
) -> None:
    """Let the modules compute from a pack, and the optimizer hold its values."""
    let_compute(model, parameters, pack)
    first, *others = parameters
    put_in_place(optimizer, first, pack.values, state)
    ours = {id(parameter) for parameter in others}
    for held in optimizer.param_groups:
        stay = [seat for seat, parameter in enumerate(held["params"]) if id(parameter) not in ours]
        held["params"][:] = [held["params"][seat] for seat in stay]
        if "param_names" in held:
            names = [held["param_names"][seat] for seat in stay]
            pairs = zip(names, held["params"], strict=True)
            held["param_names"] = [pack.name if parameter is pack.values else name for name, parameter in pairs]
    for parameter in others:
        optimizer.state.pop(parameter, None)
