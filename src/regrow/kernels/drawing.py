"""The first free places in every layer's random sequence, on a GPU."""

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from regrow.kernels import kernel, on

_BLOCK = 1024


def first_free(
    active: Tensor, keys: list[int], num_units: list[int], offsets: list[int], wanted: list[int], lengths: list[int]
) -> Tensor | None:
    """`wanted` different free places of each layer out of the first `lengths` draws; None if those did not suffice."""
    starts, outputs = list(accumulate(lengths, initial=0)), list(accumulate(wanted, initial=0))
    numbers = [starts[:-1], keys, num_units, offsets, wanted, lengths, outputs[:-1]]
    device, num_layers, num_draws = active.device, len(keys), starts[-1]
    table = torch.from_numpy(np.array(numbers, dtype=np.int64)).to(device)
    owner = torch.full_like(active, num_draws, dtype=torch.int32)
    places = torch.empty(num_draws, dtype=torch.int64, device=device)
    found = torch.empty(outputs[-1] + 1, dtype=torch.int64, device=device)  # the last entry counts layers left short
    with on(device):
        blocks = (-(-num_draws // _BLOCK),)
        kernel("draw_places")[blocks](table, num_layers, active, owner, places, num_draws, found, outputs[-1], _BLOCK)
        kernel("take_first")[(num_layers,)](table, num_layers, owner, places, found, outputs[-1], _BLOCK)
    return None if found[-1].item() else found[:-1]
