"""The format of small files: of each sparse tensor its active values and a bit per position, everything else as it is.

One safetensors file, which any reader of that format can open. It has few entries, each with many tensors one after the
other: `values:DTYPE` the active values of all sparse tensors of a dtype (perhaps stored with fewer bits), `masks` their
bits (8 positions to a byte, the first one in the lowest bit, in the order of the tensor's own indices, each tensor from
a byte of its own), `dense:DTYPE` all others. Which these are, in which order, the metadata says as in `file_index`; it
also says what made the file, and has a checksum (format 2 had none). Nothing is ever unpickled, and all that a file
claims is checked against its size before memory is taken for it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from regrow.files.atomic import read_steadily, write_atomically
from regrow.files.checksum import check_metadata, check_tensors, is_sealed, sealed
from regrow.files.index import DENSE, FLOATS, MASKS, VALUES, Index, Piece, by_module, decode, encode

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}
_FORMAT = "3"
_FORMAT_BEFORE = "2"  # without a checksum
_STORED_FLOATS = ("F16", "BF16", "F32", "F64")
_PICKLED = (b"PK", b"\x80\x02")  # as torch.save begins a file, now and before 1.6
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)


@dataclass(frozen=True)
class Content:
    """All tensors of a file, dense, by the names of `model.state_dict()`; masks of the sparse ones; what made it."""

    state: dict[str, Tensor]
    masks: dict[str, Tensor]
    made_by: dict[str, str]


@dataclass(frozen=True)
class SparseTensor:
    """A tensor as a file has it: its active values in the order of its own indices, and a bit for each position."""

    shape: tuple[int, ...]
    values: Tensor
    bits: Tensor


@dataclass(frozen=True)
class Parts:
    """The tensors of a file, sparse ones as they are stored."""

    dense: dict[str, Tensor]
    sparse: dict[str, SparseTensor]
    index: Index


def pick(tensor: Tensor, mask: Tensor) -> SparseTensor:
    """What is to be stored of a tensor with this mask."""
    bits = np.packbits(mask.flatten().numpy(), bitorder="little")
    return SparseTensor(tuple(tensor.shape), tensor[mask], torch.from_numpy(bits))


def write(
    path: str | os.PathLike[str],
    dense: Mapping[str, Tensor],
    sparse: Mapping[str, SparseTensor],
    *,
    aliases: Mapping[str, str],
    made_by: Mapping[str, str],
    values: str | None = None,
) -> None:
    """Write a file; `aliases` are further names of tied tensors, `values` a dtype to store active values with."""
    pieces: dict[str, Piece] = {}
    rows: dict[str, list[Tensor]] = {}
    for name in by_module([*sparse, *dense]):
        if name in sparse:
            part = sparse[name]
            piece = Piece(VALUES + _name(part.values.dtype), part.shape, len(part.values))
            rows.setdefault(MASKS, []).append(part.bits)
            row = part.values if values is None else part.values.to(DTYPES[values])
        else:
            row = dense[name].flatten()
            piece = Piece(DENSE + _name(row.dtype), tuple(dense[name].shape))
        pieces[name] = piece
        rows.setdefault(piece.entry, []).append(row)
    index = Index(pieces, dict(aliases), {"torch": torch.__version__, **made_by})
    stored = {entry: torch.cat(own) for entry, own in rows.items()}
    metadata = sealed({"regrow": _FORMAT, **encode(index)}, stored)
    try:
        payload = to_bytes(stored, metadata)
    except KeyError as error:
        raise TypeError(f"a safetensors file cannot hold tensors of {error}; convert them first") from error
    try:
        decode(metadata, len(payload))
    except ValueError as error:
        raise ValueError(f"the model cannot be saved, as nothing would read the file: {error}") from None
    write_atomically(Path(path), lambda file: file.write(payload))


def read(path: str | os.PathLike[str]) -> Content:
    """Everything that is in a file, dense."""
    parts = read_parts(path)
    state, masks = dict(parts.dense), {}
    for name, part in parts.sparse.items():
        piece = parts.index.pieces[name]
        bits = np.unpackbits(part.bits.numpy(), count=piece.num_positions, bitorder="little")
        mask = torch.from_numpy(bits.view(bool))
        flat = part.values.new_zeros(piece.num_positions)
        flat[mask] = part.values
        state[name], masks[name] = flat.view(part.shape), mask.view(part.shape)
    state |= {name: state[first] for name, first in parts.index.aliases.items()}
    return Content(state, masks, parts.index.made_by)


def read_index(path: str | os.PathLike[str]) -> Index:
    """What a file says of itself, without its tensors."""
    with _open(path) as file:
        return _check(file, path)


def read_parts(path: str | os.PathLike[str]) -> Parts:
    """The tensors of a file without a dense form of the sparse ones; dense ones have memory of their own."""
    return read_steadily(Path(path), lambda: _read_parts(path))  # safetensors opens a file once more for its tensors


def _read_parts(path: str | os.PathLike[str]) -> Parts:
    with _open(path) as file:
        index = _check(file, path)
        stored = {entry: file.get_tensor(entry) for entry in index.layout()}
        metadata: dict[str, str] = file.metadata()
    if is_sealed(metadata):
        try:
            check_tensors(metadata, stored)
        except ValueError as error:
            raise bad(path, error) from None
    own = {entry: _cut(stored[entry], sizes) for entry, sizes in index.layout().items()}
    for name, bits in own.get(MASKS, {}).items():
        if not _counts(bits.numpy(), index.pieces[name]):
            raise bad(path, f"the mask of {name} does not count {index.pieces[name].active} values")
    dense: dict[str, Tensor] = {}
    sparse: dict[str, SparseTensor] = {}
    for name, piece in index.pieces.items():
        part = own[piece.entry][name]
        if piece.active is None:
            dense[name] = part.view(piece.shape).clone()
        else:
            values = part.to(DTYPES[piece.entry.removeprefix(VALUES)])
            sparse[name] = SparseTensor(piece.shape, values, own[MASKS][name])
    return Parts(dense, sparse, index)


def _cut(entry: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    return dict(zip(sizes, torch.split(entry, list(sizes.values())), strict=True))


def bad(path: str | os.PathLike[str], why: object) -> ValueError:
    return ValueError(f"{os.fspath(path)} cannot be loaded: {why}")


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        with Path(path).open("rb") as raw:
            is_pickled = raw.read(2) in _PICKLED
        if is_pickled:
            raise bad(path, "it looks like a checkpoint of torch; use torch.load(path, weights_only=True)") from None
        raise ValueError(f"{os.fspath(path)} is damaged or no safetensors file: {error}") from None


def _check(file: Any, path: str | os.PathLike[str]) -> Index:
    """What a file says of itself, after everything has been found to fit together."""
    metadata: dict[str, str] = file.metadata() or {}
    found = metadata.get("regrow")
    if found is None:
        raise bad(path, "it was not written by regrow.save")
    if found not in (_FORMAT, _FORMAT_BEFORE):
        both = f"this version of regrow reads {_FORMAT_BEFORE} and {_FORMAT}"
        raise bad(path, f"its format is {found[:20]} and {both}; save the model again with this one, or update it")
    try:
        if found == _FORMAT or is_sealed(metadata):
            check_metadata(metadata)
        index = decode(metadata, Path(path).stat().st_size)
    except ValueError as error:
        raise bad(path, error) from None
    entries = {entry: file.get_slice(entry) for entry in file.keys()}  # noqa: SIM118
    expected = {entry: [sum(sizes.values())] for entry, sizes in index.layout().items()}
    if {entry: own.get_shape() for entry, own in entries.items()} != expected:
        raise bad(path, "its entries are not as long as the tensors that should be in them")
    for entry, own in entries.items():
        dtypes = ("U8",) if entry == MASKS else _STORED_FLOATS
        is_less_than_a_byte = own.get_dtype().startswith(("F4", "F6_"))  # which torch counts otherwise, or not at all
        if is_less_than_a_byte or not (entry.startswith(DENSE) or own.get_dtype() in dtypes):
            raise bad(path, f"{entry} cannot have dtype {own.get_dtype()}")
    return index


def _counts(bits: "np.ndarray[Any, np.dtype[np.uint8]]", piece: Piece) -> bool:
    """Whether as many bits are set as there are values, and none beyond the positions."""
    num_last = piece.num_positions % 8
    return int(_ONES[bits].sum()) == piece.active and not (num_last and int(bits[-1]) >> num_last)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
