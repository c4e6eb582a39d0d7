"""Tensors as files have them, and what is made of these."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from regrow.files.index import BUFFERS, FLOATS, MASKS, POSITIONS, VALUES, Index, Piece
from regrow.files.positions import Code, Positions, code_of, positions_in, positions_of

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}


@dataclass(frozen=True)
class Content:
    """All tensors of a file, dense, by the names of `model.state_dict()`; masks of the sparse ones; what made it.

    `buffers` names those that are no parameters.
    """

    state: dict[str, Tensor]
    masks: dict[str, Tensor]
    made_by: dict[str, str]
    buffers: Collection[str] = ()


@dataclass(frozen=True)
class SparseTensor:
    """A tensor to be written: its active values in the order of its own indices, and their positions in code."""

    shape: tuple[int, ...]
    values: Tensor
    code: Code

    @classmethod
    def of(cls, shape: tuple[int, ...], values: Tensor, positions: Tensor) -> "SparseTensor":
        return cls(shape, values, code_of(positions.numpy(), prod(shape)))


@dataclass(frozen=True)
class Part:
    """A sparse tensor that was read: values and positions in the order of its own indices."""

    shape: tuple[int, ...]
    values: Tensor
    positions: Tensor

    def dense(self) -> Tensor:
        flat = self.values.new_zeros(prod(self.shape))
        return flat.index_copy_(0, self.positions, self.values).view(self.shape)

    def mask(self) -> Tensor:
        flat = torch.zeros(prod(self.shape), dtype=torch.bool)
        return flat.index_fill_(0, self.positions, True).view(self.shape)


@dataclass(frozen=True)
class Stored:
    """What is in a file, as it is there: for each entry the tensors' parts of it. Tensors are made when asked for."""

    path: str | os.PathLike[str]
    index: Index
    entries: dict[str, dict[str, Tensor]]

    def part(self, name: str) -> Part:
        """A sparse tensor."""
        piece = self.index.pieces[name]
        try:
            positions = _positions(self.entries, name, piece)
        except ValueError as error:
            raise bad(self.path, f"the positions of {name} make no sense: {error}") from None
        values = self.entries[piece.entry][name].to(DTYPES[piece.entry.removeprefix(VALUES)])
        return Part(piece.shape, values, torch.from_numpy(positions))

    def tensor(self, name: str) -> Tensor:
        """Any tensor, dense, in memory of its own."""
        piece = self.index.pieces[name]
        if piece.active is not None:
            return self.part(name).dense()
        return self.entries[piece.entry][name].view(piece.shape).clone()

    def content(self) -> Content:
        """Everything, dense."""
        state, masks = {}, {}
        for name, piece in self.index.pieces.items():
            if piece.active is None:
                state[name] = self.tensor(name)
            else:
                part = self.part(name)
                state[name], masks[name] = part.dense(), part.mask()
        state |= {name: state[first] for name, first in self.index.aliases.items()}
        buffers = {name for name, piece in self.index.pieces.items() if piece.entry.startswith(BUFFERS)}
        return Content(state, masks, self.index.made_by, buffers)


def bad(path: str | os.PathLike[str], why: object) -> ValueError:
    return ValueError(f"{os.fspath(path)} cannot be loaded: {why}")


def _positions(entries: Mapping[str, Mapping[str, Tensor]], name: str, piece: Piece) -> Positions:
    assert piece.active is not None
    if piece.code is None:
        return positions_in(entries[MASKS][name].numpy(), piece.num_positions, piece.active)
    code = Code(piece.code.parameter, entries[POSITIONS][name].numpy())
    return positions_of(code, piece.num_positions, piece.active)
