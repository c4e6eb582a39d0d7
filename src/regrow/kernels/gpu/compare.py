"""Which active units are smaller than a bound, or the smallest, on a GPU: read where the weights lie, with one wait."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf

import numpy as np
import torch
from torch import Tensor

from regrow.core.row import Chunk
from regrow.kernels.gpu import kernel, on

_BLOCK, _NUM_WARPS = 8192, 8
_BLOCK_OF_LAYER, _NUM_WARPS_OF_LAYER = 4096, 16


def below(chunk: Chunk, pieces: Sequence[Tensor], active: Tensor, bound: float) -> tuple[Tensor, list[int]] | None:
    """Where the active units of magnitude less than a bound are, ascending, and how many of them are in each layer.

    `pieces` are the values of each layer, flat. None if they differ in dtype or are not all finite.
    """
    like = pieces[0]
    if {piece.dtype for piece in pieces} != {like.dtype}:
        return None
    addresses = tuple([piece.data_ptr() for piece in pieces])
    blocks, firsts = _cut(addresses, chunk.offsets, like.element_size(), chunk.device)
    grid = (len(blocks),)
    of_block = torch.empty(grid, dtype=torch.int32, device=chunk.device)
    with on(chunk.device):
        kernel("count_below")[grid](blocks, like, active, bound, of_block, _BLOCK, num_warps=_NUM_WARPS)
        counts = of_block.cpu().numpy()
        if counts.min() < 0:
            return None
        of_layer: list[int] = np.add.reduceat(counts, firsts).tolist()
        positions = torch.empty(sum(of_layer), dtype=torch.int64, device=chunk.device)
        kernel("list_below")[grid](blocks, like, active, bound, of_block, positions, _BLOCK, num_warps=_NUM_WARPS)
    return positions, of_layer


def smallest(chunk: Chunk, pieces: Sequence[Tensor], active: Tensor, wanted: Sequence[int]) -> Tensor | None:
    """Where the `wanted` active units of each layer of the smallest magnitude are, ascending; of equal ones the first.

    None if the values differ in dtype, have more than 32 bits or are not all finite.
    """
    like = pieces[0]
    everything = None if like.element_size() > 4 else below(chunk, pieces, active, inf)
    if everything is None:
        return None
    positions, counts = everything
    offsets = [begin * like.element_size() for begin in chunk.offsets[:-1]]
    addresses = [piece.data_ptr() - offset for piece, offset in zip(pieces, offsets, strict=True)]
    table = np.array([*accumulate(counts, initial=0), *accumulate(wanted, initial=0), *addresses])
    numbers = torch.empty_like(positions, dtype=torch.int32)
    found = positions.new_empty(sum(wanted))
    with on(chunk.device):
        kernel("take_smallest")[(len(wanted),)](
            torch.from_numpy(table).to(chunk.device, non_blocking=True),
            len(wanted), like, positions, numbers, found, _BLOCK_OF_LAYER, num_warps=_NUM_WARPS_OF_LAYER,
        )  # fmt: skip
    return found


@lru_cache(maxsize=32)
def _cut(
    addresses: tuple[int, ...], offsets: tuple[int, ...], item_size: int, device: torch.device
) -> tuple[Tensor, list[int]]:
    """Layers cut into blocks: of each its address, its first unit and its layer's end; and each layer's first block.

    The same for every rewiring as long as the weights stay where they are.
    """
    blocks: list[tuple[int, int, int]] = []
    firsts = []
    for address, (begin, end) in zip(addresses, pairwise(offsets), strict=True):
        firsts.append(len(blocks))
        blocks += [(address + (unit - begin) * item_size, unit, end) for unit in range(begin, end, _BLOCK)]
    return torch.tensor(blocks).to(device), firsts
