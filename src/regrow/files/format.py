"""The format of small files: of each sparse tensor its active values and their positions, everything else as it is.

One safetensors file, which any reader of that format can open. It has few entries, each with many tensors one after the
other: `values:DTYPE` the active values of all sparse tensors of a dtype (perhaps stored with fewer bits), `positions`
where they are in the order of the tensor's own indices, in the code of `positions.py`, each tensor from a byte of its
own, `buffers:DTYPE` and `dense:DTYPE` all others. Which these are, in which order, the metadata says as in `index.py`;
it also says what made the file, and has a checksum. Nothing is ever unpickled, and all that a file claims is checked
against its size before memory is taken for it.

Older formats are read for ever. In the place of `positions` format 3 had `masks`, a bit for each position, 8 to a byte,
the first in the lowest bit, and its buffers were in `dense:DTYPE`; format 2 had no checksum, either.
"""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from regrow.files.atomic import read_steadily, write_atomically
from regrow.files.checksum import check_metadata, check_tensors, is_sealed, sealed
from regrow.files.index import (
    BUFFERS,
    DENSE,
    MASKS,
    POSITIONS,
    VALUES,
    CodeInfo,
    Index,
    Piece,
    by_module,
    decode,
    encode,
)
from regrow.files.stored import DTYPES, Content, SparseTensor, Stored, bad

_FORMAT = "4"
_WITHOUT_CHECKSUM = "2"
_FORMATS = (_WITHOUT_CHECKSUM, "3", _FORMAT)
_STORED_FLOATS = ("F16", "BF16", "F32", "F64")
_PICKLED = (b"PK", b"\x80\x02")  # as torch.save begins a file, now and before 1.6


def pick(tensor: Tensor, mask: Tensor) -> SparseTensor:
    """What is to be stored of a tensor with this mask."""
    return SparseTensor.of(tuple(tensor.shape), tensor[mask], mask.flatten().nonzero().flatten())


def write(
    path: str | os.PathLike[str],
    dense: Mapping[str, Tensor],
    sparse: Mapping[str, SparseTensor],
    *,
    aliases: Mapping[str, str],
    made_by: Mapping[str, str],
    buffers: Collection[str] = (),
    values: str | None = None,
) -> None:
    """Write a file; `aliases` are further names of tied tensors, `values` a dtype to store active values with.

    `buffers` says which of the dense tensors are no parameters.
    """
    pieces: dict[str, Piece] = {}
    rows: dict[str, list[Tensor]] = {}
    for name in by_module([*sparse, *dense]):
        if name in sparse:
            part = sparse[name]
            code = CodeInfo(part.code.parameter, len(part.code.content))
            piece = Piece(VALUES + _name(part.values.dtype), part.shape, len(part.values), code)
            rows.setdefault(POSITIONS, []).append(torch.from_numpy(part.code.content))
            row = part.values if values is None else part.values.to(DTYPES[values])
        else:
            row = dense[name].flatten()
            kind = BUFFERS if name in buffers else DENSE
            piece = Piece(kind + _name(row.dtype), tuple(dense[name].shape))
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
    header, begin = _in_order(payload)
    write_atomically(Path(path), lambda file: file.writelines([header, memoryview(payload)[begin:]]))


def _in_order(payload: bytes) -> tuple[bytes, int]:
    """The header of a file with its metadata sorted, so that the same model is the same bytes, and where it ended."""
    begin = 8 + int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8:begin])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, begin


def read(path: str | os.PathLike[str]) -> Content:
    """Everything that is in a file, dense."""
    return read_stored(path).content()


def read_index(path: str | os.PathLike[str]) -> Index:
    """What a file says of itself, without its tensors."""
    with _open(path) as file:
        return _check(file, path)


def read_stored(path: str | os.PathLike[str]) -> Stored:
    """What is in a file, without a dense form of anything that is sparse."""
    return read_steadily(Path(path), lambda: _read_stored(path))  # safetensors opens a file once more for its tensors


def _read_stored(path: str | os.PathLike[str]) -> Stored:
    with _open(path) as file:
        index = _check(file, path)
        stored = {entry: file.get_tensor(entry) for entry in index.layout()}
        metadata: dict[str, str] = file.metadata()
    if is_sealed(metadata):
        try:
            check_tensors(metadata, stored)
        except ValueError as error:
            raise bad(path, error) from None
    return Stored(path, index, {entry: _cut(stored[entry], sizes) for entry, sizes in index.layout().items()})


def _cut(entry: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    return dict(zip(sizes, torch.split(entry, list(sizes.values())), strict=True))


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
        raise bad(
            path, "it was not written by regrow.save; use safetensors.torch.load_file(path) for what others wrote"
        )
    if found not in _FORMATS:
        known = f"this version of regrow reads {', '.join(_FORMATS[:-1])} and {_FORMAT}"
        raise bad(path, f"its format is {found[:20]} and {known}; save the model again with this one, or update it")
    try:
        if found != _WITHOUT_CHECKSUM or is_sealed(metadata):
            check_metadata(metadata)
        index = decode(metadata, Path(path).stat().st_size)
    except ValueError as error:
        raise bad(path, error) from None
    entries = {entry: file.get_slice(entry) for entry in file.keys()}  # noqa: SIM118
    expected = {entry: [sum(sizes.values())] for entry, sizes in index.layout().items()}
    if {entry: own.get_shape() for entry, own in entries.items()} != expected:
        raise bad(path, "its entries are not as long as the tensors that should be in them")
    for entry, own in entries.items():
        dtypes = ("U8",) if entry in (MASKS, POSITIONS) else _STORED_FLOATS
        is_less_than_a_byte = own.get_dtype().startswith(("F4", "F6_"))  # which torch counts otherwise, or not at all
        if is_less_than_a_byte or not (entry.startswith((DENSE, BUFFERS)) or own.get_dtype() in dtypes):
            raise bad(path, f"{entry} cannot have dtype {own.get_dtype()}")
    return index


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
