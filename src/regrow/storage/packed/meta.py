"""Models built on the meta device: what is not packed becomes real, as torch would have made it."""

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.names import unwrap
from regrow.storage.computed_weights import expanders_of, owners_of
from regrow.storage.optimizer_state import constant_state, put_in_place
from regrow.storage.packed.slot import Slot


def check_can_become_real(model: nn.Module, packed: list[nn.Parameter]) -> None:
    """Refuse a module on the meta device that does not say how it begins."""
    ours = {id(parameter) for parameter in packed}
    for name, module in unwrap(model).named_modules():
        own = {key: tensor for key, tensor in _tensors(module).items() if id(tensor) not in ours and tensor.is_meta}
        loses_weight = any(id(parameter) in ours for parameter in module._parameters.values())
        if own and (set(own) != {"bias"} if loses_weight else not hasattr(module, "reset_parameters")):
            raise ValueError(
                f"{type(module).__name__} {name!r} is on the meta device, and there is no telling how its "
                f"{sorted(own)[0]} begins; make it real before attaching: to_empty(device=...), then fill it"
            )


def become_real(model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
    """Make all that is still on the meta device: biases of packed layers, and other modules by `reset_parameters`."""
    unmade = _unmade(model)
    for parameter, real in _make(model, unmade, device):
        put_in_place(optimizer, parameter, real, constant_state(optimizer, parameter))
    for module in unmade:
        _begin(module)


def check_can_be_filled(model: nn.Module) -> None:
    """Refuse what is on the meta device and in no state, so that nobody will fill it."""
    known = model.state_dict()
    for name, buffer in model.named_buffers():
        if buffer.is_meta and name not in known:
            raise ValueError(
                f"{name} is on the meta device and in no file; make it real before loading: to_empty(device=...), then "
                "fill it"
            )


def make_room(model: nn.Module) -> None:
    """Memory for all that is still on the meta device, for somebody to fill."""
    for _ in _make(model, _unmade(model), torch.get_default_device()):
        pass


def _unmade(model: nn.Module) -> list[nn.Module]:
    modules = unwrap(model).modules()
    return [module for module in modules if any(tensor.is_meta for tensor in _tensors(module).values())]


def _make(
    model: nn.Module, unmade: Sequence[nn.Module], device: torch.device
) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Put tensors with memory into the place of those without; of parameters which for which."""
    for module in unmade:
        for parameter in [p for p in module._parameters.values() if p is not None and p.is_meta]:
            real = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
            for owner, name in owners_of(model, parameter):
                owner._parameters[name] = real
            yield parameter, real
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)


def _begin(module: nn.Module) -> None:
    slots = [slot for slot in expanders_of(module).values() if isinstance(slot, Slot)]
    bias = module._parameters.get("bias")
    if slots and bias is not None:
        bound = prod(slots[0].layer.shape[1:]) ** -0.5
        nn.init.uniform_(bias, -bound, bound)
    elif not slots:
        module.reset_parameters()  # type: ignore[operator]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    both = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in both.items() if tensor is not None}
