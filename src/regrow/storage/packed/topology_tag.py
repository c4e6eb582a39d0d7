"""Where values belong is part of a model's state: a mark of the topology stands beside each vector of packed values.

The vector says nothing of positions, so that one from another topology would scramble the network without a word. A
model that was given such values refuses to compute until the sparsifier's state brings the places they belong to.

The mark has the name of a buffer, because what saves and loads models (torch.distributed.checkpoint, say) looks up what
is in a state. But what it is, is worked out where a state is made, and so DDP has nothing to send.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regrow.storage.computed_weights import expanders_of
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.slot import Slot

_NOT_SENT = "_ddp_params_and_buffers_to_ignore"  # where DistributedDataParallel looks


def start_marking(model: nn.Module) -> None:
    """Let the state of a model with packed values have their marks."""
    marks = {mark_of(pack.name): pack.values.device for pack in _packs_of(model)}
    for name, device in marks.items():
        model.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))
    setattr(model, _NOT_SENT, [*getattr(model, _NOT_SENT, ()), *marks])
    model.register_state_dict_post_hook(_add_marks)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(_take_marks)  # type: ignore[no-untyped-call]


def stop_marking(model: nn.Module, pack: Pack) -> None:
    """Leave the model as it was; by the hooks themselves, since a copied model has no handles of its own."""
    name = mark_of(pack.name)
    del model._buffers[name]
    setattr(model, _NOT_SENT, [other for other in getattr(model, _NOT_SENT) if other != name])
    if not getattr(model, _NOT_SENT):
        delattr(model, _NOT_SENT)
    for hooks, ours in ((model._state_dict_hooks, _add_marks), (model._load_state_dict_pre_hooks, _take_marks)):
        for number in [number for number, hook in hooks.items() if getattr(hook, "hook", hook) is ours]:
            del hooks[number]


def mark_of(name: str) -> str:
    """What the mark of a vector is called in a model's state."""
    return f"{name}_topology"


def _add_marks(model: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    for pack in _packs_of(model):
        state[prefix + mark_of(pack.name)] = pack.mark_of_values()


def _take_marks(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Note where the values belong that are about to be loaded; where nothing is said, they are taken as they are."""
    for pack in _packs_of(model):
        name = mark_of(pack.name)
        mark = state.get(prefix + name)
        state[prefix + name] = model._buffers[name]
        values = state.get(prefix + pack.name)
        if isinstance(values, Tensor) and values.shape == pack.values.shape:
            pack.expect(None if mark is None else torch.as_tensor(mark, device="cpu").clone())


def _packs_of(model: nn.Module) -> Sequence[Pack]:
    """The packs whose values a module has itself."""
    slots = (slot for module in model.modules() for slot in expanders_of(module).values() if isinstance(slot, Slot))
    return list({id(slot.pack): slot.pack for slot in slots if slot.pack.is_held_by(model)}.values())
