"""Parameters that are other names of the same memory, of which each would get a mask of its own."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor


def check_memory(everything: Mapping[str, Tensor], chosen: Collection[str]) -> None:
    """Refuse a chosen parameter that has a number in common with any other, or twice."""
    own = set(chosen)
    reaching: list[tuple[str, Tensor]] = []
    for name, tensor in sorted(_in_memory(everything), key=lambda pair: _place(pair[1])):
        reaching = [pair for pair in reaching if _end(pair[1]) > _place(tensor)]
        for other, its in reaching:
            if (name in own or other in own) and _overlap(its, tensor):
                raise ValueError(
                    f"{other} and {name} are two parameters over the same memory; make them one, as in "
                    "head.weight = embedding.weight, or leave both out of layers"
                )
        if name in own and tensor.numel() > _span(tensor):
            raise ValueError(f"{name} has one number in memory for several weights; give each its own with .clone()")
        reaching.append((name, tensor))


def _in_memory(everything: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [
        (name, tensor)
        for name, tensor in everything.items()
        if not tensor.is_meta and tensor.layout == torch.strided and tensor.numel()
    ]


def _place(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.data_ptr()


def _end(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.data_ptr() + _span(tensor) * tensor.itemsize


def _span(tensor: Tensor) -> int:
    """How many numbers there are from a tensor's first to its last, its own and those in between."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, of which the second begins later, have a number in common, and not only lie between it."""
    offset = other.data_ptr() - one.data_ptr()
    if one.itemsize != other.itemsize or offset % one.itemsize:
        return True
    offset //= one.itemsize
    taken = torch.zeros(max(_span(one), offset + _span(other)), dtype=torch.bool)
    taken.as_strided(one.shape, one.stride()).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), offset).any())
