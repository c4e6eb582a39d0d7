"""The first free places in every layer's random sequence, on a GPU."""

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from regrow import chance
from regrow.kernels import kernel, on

_BLOCK = 1024


def first_free(
    active: Tensor,
    key: int,
    layers: list[int],
    num_units: list[int],
    offsets: list[int],
    wanted: list[int],
    lengths: list[int],
) -> Tensor | None:
    """`wanted` different free places of each layer out of its first `lengths` draws; None if those did not suffice."""
    starts, outputs = list(accumulate(lengths, initial=0)), list(accumulate(wanted, initial=0))
    device, total, num_layers = active.device, outputs[-1], len(layers)
    tells = list(range(total, total + num_layers))
    bases = [chance.signed(chance.base(key))] * num_layers
    numbers = [layers, num_units, offsets, wanted, lengths, starts[:-1], outputs[:-1], tells, bases]
    table = torch.from_numpy(np.array(numbers, dtype=np.int64)).to(device)
    owner = torch.empty_like(active, dtype=torch.int32)
    places = torch.empty(starts[-1], dtype=torch.int64, device=device)
    found = torch.empty(total + num_layers, dtype=torch.int64, device=device)
    with on(device):
        kernel("take_first_free")[(num_layers,)](table, num_layers, active, owner, places, found, _BLOCK)
    suffices = all(n >= want for n, want in zip(found[total:].tolist(), wanted, strict=True))
    return found[:total] if suffices else None
