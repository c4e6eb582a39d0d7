"""The first free places in every layer's random sequence, on a GPU."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Chunk
from regrow.kernels.gpu import kernel, on

_BLOCK, _NUM_WARPS = 2048, 8
_NOBODY = torch.iinfo(torch.int32).max


def first_free(chunk: Chunk, wanted: Sequence[int], active: Tensor, key: int) -> Tensor:
    """`wanted` different free places of each layer of a chunk: the first in its random sequence."""
    ends = list(accumulate(wanted, initial=0))
    table = np.array([*ends, random.signed(random.base(key))])
    found = torch.empty(ends[-1], dtype=torch.int64, device=chunk.device)
    owner = torch.full_like(active, _NOBODY, dtype=torch.int32)
    with on(chunk.device):
        kernel("take_first_free")[(len(wanted),)](
            torch.from_numpy(table).to(chunk.device, non_blocking=True),
            chunk.bounds, chunk.first, len(wanted), active, owner, found, _BLOCK, num_warps=_NUM_WARPS,
        )  # fmt: skip
    return found
