"""Packed layers with a dense weight of ordinary operations, which a compiler fuses: on a GPU operators cost too much.

What changes at rewirings, the number of values, where they begin and where they belong, is in tensors that a graph is
given, of a length that it does not know. The weight is made anew in the backward pass, as in a checkpoint.
"""

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from regrow.storage.packed.slot import Slot


def weight(slot: "Slot", values: Tensor, dtype: torch.dtype) -> Tensor:
    """A layer's weight, dense; the gradient of its values goes to its stub."""
    if not torch.is_grad_enabled():
        return _weight(slot, values, dtype)
    made: Tensor = checkpoint(_weight, slot, values, dtype, use_reentrant=False, preserve_rng_state=False)
    return made


def _weight(slot: "Slot", values: Tensor, dtype: torch.dtype) -> Tensor:
    stub = slot.stub
    count = stub.tensor.shape[0]
    torch._check(stub.index.shape[0] == count)  # type: ignore[no-untyped-call]
    numbers = torch.arange(count, device=values.device) + stub.start
    own = values.detach().index_select(0, numbers) + stub.tensor
    flat = own.new_zeros(prod(slot.shape), dtype=dtype).index_put((stub.index.long(),), own.to(dtype))
    by_unit: Tensor = flat.view([slot.shape[dim] for dim in slot.unit_dims])
    return by_unit.permute([slot.unit_dims.index(dim) for dim in range(len(slot.shape))])
