"""Packed models in files: the same files as those of dense storage, made without the dense tensors."""

from collections.abc import Container, Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from regrow.core.names import clean, named_parameters, unwrap
from regrow.core.units import Layer, cut
from regrow.files.stored import Part, SparseTensor
from regrow.kernels.cpu.choose import Choices
from regrow.sparsifier.layers import usual_weights
from regrow.sparsifier.live import steps_of
from regrow.storage.base import StorageKind
from regrow.storage.computed_weights import check_replaceable, leave_out_unfit, owners_of
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed import Packed
from regrow.storage.packed.given import placed
from regrow.storage.packed.layers import packed_slots
from regrow.storage.packed.pack import Pack
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


def choices_to_load(storage: str | StorageKind) -> Choices | None:
    """How the layers of a model compute that is to be packed; None for one that is to stay as it is.

    On their values alone, where nobody asks for anything else: so nothing is ever dense, and bits are always the same.
    """
    kind = Packed(kernels="sparse") if storage == "packed" else storage
    if kind == "dense":
        return None
    if not isinstance(kind, Packed):
        error = ValueError if isinstance(kind, str) else TypeError
        raise error(f'storage must be "dense", "packed" or such as regrow.Packed(kernels="auto"), got {kind!r}')
    if kind.init is not None:
        raise ValueError("init draws first weights, and a file has weights; leave it out")
    return kind.choices(goes_back=False)


def packable(model: nn.Module, names: Container[str]) -> list[tuple[Layer, nn.Parameter]]:
    """Of the tensors with some names those that a model would compute with if they were packed."""
    usual = usual_weights(model)
    wanted = [(name, own) for name, own in named_parameters(model) if name in names and id(own) in usual]
    if lazy := next((name for name, own in wanted if is_lazy(own)), None):
        raise ValueError(f"{lazy} has no shape yet; run one batch through the model before loading")
    chosen = [(cut(name, own, "weight"), own) for name, own in wanted]
    chosen = leave_out_unfit(model, chosen, "packed") if chosen else []
    check_replaceable(model, [layer for layer, _ in chosen], [owners_of(model, own) for _, own in chosen], "packed")
    return chosen


def names_of(model: nn.Module, parameters: Sequence[nn.Parameter]) -> set[str]:
    """All names of some parameters, those of tied ones included."""
    ours = {id(own) for own in parameters}
    return {clean(name) for name, own in model.named_parameters(remove_duplicate=False) if id(own) in ours}


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
                "with the same sparsity and parameter groups, or build the model anew"
            )
    for key, pack in packs.items():
        _fill(pack, own[key])


@torch.no_grad()
def _fill(pack: Pack, parts: Mapping[int, Part]) -> None:
    device = pack.values.device
    places, pieces = [], []
    for number, old in enumerate(pack.places):
        own, values = placed(old.layer, parts[number], device)
        places.append(own)
        pieces.append(values)
    pack.values.copy_(torch.cat(pieces))
    pack.expect(None)
    pack.take(places)
    for steps in steps_of([pack.values]):
        for tensor in state_like(steps.optimizer, pack.values):
            tensor.zero_()
        steps.reload()
