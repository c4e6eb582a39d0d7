"""Packed models in files: the same files as those of dense storage, made without the dense tensors."""

from collections.abc import Mapping

import torch
from torch import nn

from regrow.core.names import unwrap
from regrow.files.stored import Part, SparseTensor
from regrow.sparsifier.steps import steps_of
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed.layers import packed_slots
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.places import places_of_units
from regrow.storage.packed.renumber import logical_order, renumber
from regrow.storage.packed.slot import Slot
from regrow.storage.packed.topology_tag import mark_of


def names_of_vectors(model: nn.Module) -> set[str]:
    """What a packed model calls its vectors of values."""
    vectors = {id(slot.pack.values) for slot in packed_slots(model).values()}
    return {name for name, parameter in unwrap(model).named_parameters() if id(parameter) in vectors}


def keys_of_vectors(model: nn.Module) -> set[str]:
    """What of a packed model's state says the same as a file says of its sparse layers."""
    return {key for name in names_of_vectors(model) for key in (name, mark_of(name))}


def pick_packed(slot: Slot) -> SparseTensor:
    """What is to be stored of a packed layer."""
    slot.pack.check_belongs()
    positions, order = slot.places.logical().sort()
    values = slot.pack.split(slot.pack.values.detach())[slot.number].index_select(0, order)
    return SparseTensor.of(tuple(slot.layer.shape), values.cpu(), positions.cpu())


def fill(model: nn.Module, parts: Mapping[str, Part]) -> None:
    """Take over values and positions for all packed layers of a model."""
    slots = packed_slots(model)
    if set(parts) != set(slots) or any(parts[name].shape != slot.layer.shape for name, slot in slots.items()):
        raise ValueError("the sparse layers of the file are not the packed ones of the model; attach with the same")
    if empty := next((name for name, part in parts.items() if not len(part.values)), None):
        raise ValueError(f"the file has no active weight in {empty}; every packed layer has at least one")
    packs = {id(slot.pack): slot.pack for slot in slots.values()}
    own = {
        key: {slot.number: parts[name] for name, slot in slots.items() if slot.pack is p} for key, p in packs.items()
    }
    for key, pack in packs.items():
        given = sum(len(part.values) for part in own[key].values())
        if given != len(pack.values):
            raise ValueError(
                f"the file has {given:,} active weights where the model has room for {len(pack.values):,}; attach "
                "with the same sparsity and parameter groups"
            )
    for key, pack in packs.items():
        _fill(pack, own[key])


@torch.no_grad()
def _fill(pack: Pack, parts: Mapping[int, Part]) -> None:
    device = pack.values.device
    places, pieces = [], []
    for number, old in enumerate(pack.places):
        part = parts[number]
        units = renumber(part.positions.to(device), old.layer.shape, logical_order(old.layer), old.layer.unit_dims)
        own, order = places_of_units(old.layer, units)
        places.append(own)
        pieces.append(part.values.to(device).index_select(0, order))
    pack.values.copy_(torch.cat(pieces))
    pack.expect(None)
    pack.take(places)
    for steps in steps_of([pack.values]):
        for tensor in state_like(steps.optimizer, pack.values):
            tensor.zero_()
        steps.reload()
