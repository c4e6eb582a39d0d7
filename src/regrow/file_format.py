"""The format of small files: of each sparse tensor its active values and a bit per position, everything else as it is.

One safetensors file, which any reader of that format can open. A tensor NAME that is sparse is stored as `values:NAME`
and `mask:NAME` (8 positions to a byte, the first one in the lowest bit, in the order of the tensor's own indices); its
shape and dtype, and what made the file, are in the metadata. Nothing is ever unpickled, and all that a file claims is
checked against its size before memory is taken for it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from regrow.atomic import write_atomically

VALUES, MASK = "values:", "mask:"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
_FORMAT = "1"
_MADE_BY = ("method", "step", "torch")


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


def pick(tensor: Tensor, mask: Tensor) -> SparseTensor:
    """What is to be stored of a tensor with this mask."""
    bits = np.packbits(mask.flatten().numpy(), bitorder="little")
    return SparseTensor(tuple(tensor.shape), tensor[mask], torch.from_numpy(bits))


def write(
    path: str | os.PathLike[str],
    plain: Mapping[str, Tensor],
    sparse: Mapping[str, SparseTensor],
    *,
    aliases: Mapping[str, str],
    made_by: Mapping[str, str],
    values: str | None = None,
) -> None:
    """Write a file; `aliases` are further names of tied tensors, `values` a dtype to store active values with."""
    stored: dict[str, Tensor] = {}
    shapes: dict[str, dict[str, Any]] = {}
    for name, tensor in plain.items():
        is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
        stored[name] = tensor.clone() if is_part else tensor.contiguous()
    for name, part in sparse.items():
        stored[VALUES + name] = part.values if values is None else part.values.to(DTYPES[values])
        stored[MASK + name] = part.bits
        shapes[name] = {"shape": list(part.shape), "dtype": str(part.values.dtype).removeprefix("torch.")}
    metadata = {"regrow": _FORMAT, "sparse": json.dumps(shapes), "torch": torch.__version__, **made_by}
    if aliases:
        metadata["aliases"] = json.dumps(aliases)
    payload = to_bytes(stored, metadata)
    write_atomically(Path(path), lambda file: file.write(payload))


def open_file(path: str | os.PathLike[str]) -> Any:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is damaged or no safetensors file: {error}") from None


def read(path: str | os.PathLike[str]) -> Content:
    """Everything that is in a file."""
    with open_file(path) as file:
        shapes, made_by = check(file, path)
        aliases = read_json(file.metadata() or {}, "aliases", path)
        state = {key: file.get_tensor(key) for key in file.keys() if not key.startswith((VALUES, MASK))}  # noqa: SIM118
        masks = {}
        for name, (shape, dtype) in shapes.items():
            bits = np.unpackbits(file.get_tensor(MASK + name).numpy(), bitorder="little")
            num_positions = prod(shape)
            mask = torch.from_numpy(bits[:num_positions].astype(bool))
            values = file.get_tensor(VALUES + name)
            if int(mask.count_nonzero()) != len(values) or bits[num_positions:].any():
                raise bad(path, f"the mask of {name} does not count {len(values)} values")
            dense = torch.zeros(num_positions, dtype=dtype)
            dense[mask] = values.to(dtype)
            state[name], masks[name] = dense.view(shape), mask.view(shape)
    for name, other in aliases.items():
        if not isinstance(other, str) or other not in state:
            raise bad(path, f"{name} is said to be tied to {other!r}, which is not there")
        state[name] = state[other]
    return Content(state, masks, made_by)


def check(file: Any, path: str | os.PathLike[str]) -> tuple[dict[str, tuple[list[int], torch.dtype]], dict[str, str]]:
    """The shapes and dtypes of the sparse tensors, after everything a file says has been found to fit together."""
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("regrow") != _FORMAT:
        found = metadata.get("regrow")
        raise bad(path, f"its format is {found}, not {_FORMAT}" if found else "it was not written by regrow.save")
    keys = set(file.keys())
    shapes: dict[str, tuple[list[int], torch.dtype]] = {}
    for name, told in read_json(metadata, "sparse", path).items():
        if not isinstance(told, dict) or not _is_shape(told.get("shape")) or told.get("dtype") not in DTYPES:
            raise bad(path, f"shape or dtype of {name} make no sense: {told!r}")
        shape: list[int] = told["shape"]
        if name in keys or not {VALUES + name, MASK + name} <= keys:
            raise bad(path, f"the parts of {name} are not there, or there twice")
        values, mask = file.get_slice(VALUES + name), file.get_slice(MASK + name)
        num_positions = prod(shape)
        if mask.get_dtype() != "U8" or mask.get_shape() != [-(-num_positions // 8)]:
            raise bad(path, f"the mask of {name} has not one bit for each of its {num_positions} positions")
        if len(values.get_shape()) != 1 or values.get_shape()[0] > num_positions:
            raise bad(path, f"{name} has more values than positions")
        shapes[name] = (shape, DTYPES[told["dtype"]])
    strangers = [key for key in keys if key.startswith((VALUES, MASK)) and key.partition(":")[2] not in shapes]
    if strangers:
        raise bad(path, f"{strangers[0]} belongs to no tensor")
    return shapes, {key: metadata[key] for key in _MADE_BY if key in metadata}


def _is_shape(told: object) -> bool:
    return isinstance(told, list) and len(told) < 64 and all(type(size) is int and size >= 0 for size in told)


def read_json(metadata: Mapping[str, str], key: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise bad(path, f"its metadata {key!r} cannot be read")
    return content


def bad(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)} cannot be loaded: {why}")
