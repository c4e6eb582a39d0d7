"""How large a sparse network is: parameters, description length, operations of a forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from regrow.core.names import named_parameters, unwrap
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.storage.computed_weights import expanders_of, shared_values
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed.layers import packed_slots
from regrow.storage.packed.slot import Slot


@dataclass(frozen=True)
class Size:
    """What a network is made of: `dense` parameters, `active` weights of sparse layers, `positions` they could have.

    Shared values are active, but where they go is computed, so their positions do not count.
    """

    dense: int
    active: int
    positions: int

    @property
    def parameters(self) -> int:
        return self.dense + self.active

    @property
    def bits(self) -> int:
        """The description length: 32 bits for every parameter and a bit for every position that may hold one."""
        return 32 * self.parameters + self.positions


def training_bytes(sparse: Sparsifier) -> int:
    """What the sparse layers take while they train: values, gradient, optimizer state, and what says where they are."""
    parameters = sparse.storage.parameters
    state = sum(tensor.nbytes for p in parameters for tensor in state_like(sparse.optimizer, p))
    return 2 * sum(p.nbytes for p in parameters) + state + sparse.storage.index_bytes


def largest_unit(sparse: Sparsifier) -> int:
    """How many weights are pruned or grown as one, at most; a budget of coarser units is met but for less than that."""
    return max(layer.unit_size for layer in sparse.storage.layers)


def size_of(model: nn.Module, masks: Mapping[str, Tensor]) -> Size:
    """The size of a model whose sparse layers have these masks, e.g. `sparsifier.masks()`; {} for one that has none.

    A packed model knows what is active in it, and needs none.

    >>> size_of(nn.Linear(10, 10), {"weight": torch.eye(10).bool()})
    Size(dense=10, active=10, positions=100)
    """
    parameters = dict(named_parameters(model))
    packed = packed_slots(model)
    unknown = [name for name in masks if name not in parameters and name not in packed]
    if unknown:
        raise ValueError(f"the model has no parameter {unknown[0]!r}; are the masks of another model?")
    masks = {name: mask for name, mask in masks.items() if name not in packed}
    positions = sum(mask.numel() for mask in masks.values())
    shared = sum(values.numel() for values in shared_values(model))
    everything = sum(parameter.numel() for parameter in parameters.values())
    active = sum(int(mask.count_nonzero()) for mask in masks.values())
    places = {(id(slot.pack), slot.number): slot.places for slot in packed.values()}.values()
    stored = sum(own.count for own in places)
    return Size(
        everything - positions - shared - stored,
        active + shared + stored,
        positions + sum(own.layer.num_weights for own in places),
    )


def count_flops(model: nn.Module, input_shape: tuple[int, ...], masks: Mapping[str, Tensor]) -> int:
    """Floating-point operations of the linear and convolution layers in the forward pass of one input.

    Every active weight costs a multiplication and an addition for each place it is applied to, in a sequence for each
    token. Norms, activations and biases are left out, as is usual, and so are the products within attention, which no
    weight takes part in. A model that begins with an embedding is given tokens.
    """
    model = unwrap(model)
    active = {id(p): int(masks[name].count_nonzero()) for name, p in named_parameters(model) if name in masks}
    total = 0

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        spatial = prod(output.shape[2:]) if isinstance(module, _ConvNd) else prod(output.shape[1:-1])
        total += 2 * _num_active(module) * spatial

    def _num_active(module: nn.Module) -> int:
        slot = expanders_of(module).get("weight")
        if isinstance(slot, Slot):
            return slot.places.count
        weight = module.weight
        assert isinstance(weight, Tensor)
        return active.get(id(weight), weight.numel())

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (nn.Linear, _ConvNd))]
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(_zeros_for(model, input_shape))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return total


def _zeros_for(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    parameter = next(model.parameters())
    layers = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag, nn.Linear, _ConvNd)))
    takes_tokens = isinstance(next(layers, None), (nn.Embedding, nn.EmbeddingBag))
    return torch.zeros(1, *shape, device=parameter.device, dtype=torch.int64 if takes_tokens else parameter.dtype)
