"""Small files: of each sparse tensor its active values and a bit per position, everything else as it is.

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
from torch import Tensor, nn

from regrow.atomic import write_atomically
from regrow.names import clean, unwrap
from regrow.packed_files import Part, fill, names_of_vectors, positions_in, values_and_bits
from regrow.sparsifier import Sparsifier, sparsifiers_of
from regrow.storage.pack import Slot
from regrow.storage.packed_layers import packed_slots
from regrow.summary import LayerInfo, summarise

_FORMAT = "1"
_VALUES, _MASK = "values:", "mask:"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Description:
    """What is in a file: its sparse layers, how many other numbers there are, how long it is, and what made it."""

    layers: tuple[LayerInfo, ...]
    num_dense: int
    num_bytes: int
    made_by: dict[str, str]

    @property
    def num_parameters(self) -> int:
        """All numbers that are stored, those of dense tensors and buffers included."""
        return self.num_dense + sum(layer.active for layer in self.layers)

    def __str__(self) -> str:
        title = ", ".join([f"{self.num_bytes:,} bytes", f"{self.num_parameters:,} numbers", *self.made_by.values()])
        return summarise(title, list(self.layers)) if self.layers else title


def save(
    path: str | os.PathLike[str], model: nn.Module, sparse: Sparsifier | None = None, *, values: str | None = None
) -> None:
    """Write a model with only the active values of its sparse layers.

    Without a sparsifier whatever is not 0 counts as active, in every tensor that gets smaller that way. `values`:
    "bfloat16" or "float32" to store active values with another precision than they have.
    """
    if values is not None and values not in _DTYPES:
        raise ValueError(f"values must be one of {', '.join(map(repr, _DTYPES))} or None, got {values!r}")
    tensors, aliases = _tensors_of(model)
    packed = _packed_of(model, aliases)
    if sparse is not None and packed and set(packed) != {layer.name for layer in sparse.layers}:
        raise ValueError("the model is packed, but not by this sparsifier; pass the one that belongs to it")
    masks = _nonzeros(tensors) if sparse is None else {} if packed else _masks_of(sparse, tensors)
    stored: dict[str, Tensor] = {}
    shapes: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name not in masks:
            is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
            stored[name] = tensor.clone() if is_part else tensor.contiguous()
            continue
        stored[_VALUES + name], stored[_MASK + name] = tensor[masks[name]], _pack(masks[name])
        shapes[name] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    for name, slot in packed.items():
        active, stored[_MASK + name] = values_and_bits(slot)
        stored[_VALUES + name] = active
        shapes[name] = {"shape": list(slot.layer.shape), "dtype": str(active.dtype).removeprefix("torch.")}
    if values is not None:
        stored |= {key: tensor.to(_DTYPES[values]) for key, tensor in stored.items() if key.startswith(_VALUES)}
    metadata = {"regrow": _FORMAT, "sparse": json.dumps(shapes), "torch": torch.__version__}
    if aliases:
        metadata["aliases"] = json.dumps(aliases)
    if sparse is not None:
        metadata |= {"method": repr(sparse.method), "step": str(sparse.step)}
    payload = to_bytes(stored, metadata)
    write_atomically(Path(path), lambda file: file.write(payload))


def load(path: str | os.PathLike[str], model: nn.Module) -> dict[str, Tensor]:
    """Fill a model from a file.

    A plain one gets dense weights; what comes back are the masks of its sparse layers, e.g. for `attach(...,
    start=masks)`. A packed one, attached before with the same budget, gets the file's topology with the values, and
    nothing comes back.
    """
    model = unwrap(model)
    if packed_slots(model):
        _load_packed(path, model)
        return {}
    if any(sparse.masks() for sparse in sparsifiers_of(list(model.parameters()))):
        raise ValueError("the model is attached to a sparsifier; load first, then attach(..., start=masks)")
    state, masks = _read(path)
    own_names = {clean(name): name for name in model.state_dict()}
    model.load_state_dict({own_names.get(name, name): tensor for name, tensor in state.items()})
    return masks


def _load_packed(path: str | os.PathLike[str], model: nn.Module) -> None:
    with _open(path) as file:
        shapes, _ = _check(file, path)
        aliases = _json(file.metadata() or {}, "aliases", path)
        state = {key: file.get_tensor(key) for key in file.keys() if not key.startswith((_VALUES, _MASK))}  # noqa: SIM118
        parts = {}
        for name, (shape, dtype) in shapes.items():
            positions, values = positions_in(file.get_tensor(_MASK + name)), file.get_tensor(_VALUES + name)
            if len(positions) != len(values) or (len(positions) and int(positions[-1]) >= prod(shape)):
                raise _bad(path, f"the mask of {name} does not count {len(values)} values")
            parts[name] = Part(tuple(shape), values.to(dtype), positions)
    for name, other in aliases.items():
        (parts if other in parts else state)[name] = (parts if other in parts else state)[other]
    strange = set(parts) - set(packed_slots(model))
    state |= {name: parts.pop(name).dense() for name in strange}
    own_names = {clean(name): name for name in model.state_dict()}
    state = {own_names.get(name, name): tensor for name, tensor in state.items()}
    missing = set(own_names.values()) - set(state) - names_of_vectors(model)
    if missing:
        raise _bad(path, f"it has no {sorted(missing)[0]}")
    fill(model, parts)
    model.load_state_dict(state, strict=False)


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a file, dense, by the names of `model.state_dict()`."""
    return _read(path)[0]


def describe(path: str | os.PathLike[str]) -> Description:
    """What is in a file, without reading the weights themselves."""
    with _open(path) as file:
        shapes, made_by = _check(file, path)
        layers = []
        for name, (shape, _) in shapes.items():
            active = file.get_slice(_VALUES + name).get_shape()[0]
            layers.append(LayerInfo(name, tuple(shape), active, 1 - active / max(prod(shape), 1)))
        plain = [key for key in file.keys() if not key.startswith((_VALUES, _MASK))]  # noqa: SIM118
        num_dense = sum(prod(file.get_slice(key).get_shape()) for key in plain)
    return Description(tuple(layers), num_dense, Path(path).stat().st_size, made_by)


def _tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a model's state, each once, and the further names of those that are tied."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[int, torch.Size], str] = {}
    vectors = names_of_vectors(model)
    for key, value in unwrap(model).state_dict().items():
        name = clean(key)
        if key in vectors:
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} in the model's state is no tensor but {type(value).__name__}; it cannot be saved")
        if name.startswith((_VALUES, _MASK)):
            raise ValueError(f"a tensor must not be called {name!r}: in files that means a part of a sparse one")
        place = (value.data_ptr(), value.shape)
        if value.numel() and place in seen:
            aliases[name] = seen[place]
            continue
        seen[place] = name
        tensors[name] = value.detach().cpu()
    return tensors, aliases


def _packed_of(model: nn.Module, aliases: dict[str, str]) -> dict[str, Slot]:
    """The packed layers of a model, each once; further names of tied ones go to the aliases."""
    packed: dict[str, Slot] = {}
    seen: dict[tuple[int, int], str] = {}
    for name, slot in packed_slots(model).items():
        first = seen.setdefault((id(slot.pack), slot.number), name)
        if first == name:
            packed[name] = slot
        else:
            aliases[name] = first
    return packed


def _masks_of(sparse: Sparsifier, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    masks = {name: mask.cpu() for name, mask in sparse.masks().items()}
    for name, mask in masks.items():
        if name not in tensors or tensors[name].shape != mask.shape:
            raise ValueError(f"the model has no tensor {name!r} like the sparsifier's; do they belong together?")
    return masks


def _nonzeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    masks = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() > 0:
            mask = (tensor != 0) | torch.signbit(tensor)  # a negative zero is something too
            bits = 8 * tensor.element_size()
            if bits * int(mask.count_nonzero()) + mask.numel() < bits * mask.numel():
                masks[name] = mask
    return masks


def _pack(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(mask.flatten().numpy(), bitorder="little"))


def _open(path: str | os.PathLike[str]) -> Any:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is damaged or no safetensors file: {error}") from None


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors, dense, and the masks of the sparse ones."""
    with _open(path) as file:
        shapes, _ = _check(file, path)
        aliases = _json(file.metadata() or {}, "aliases", path)
        state = {key: file.get_tensor(key) for key in file.keys() if not key.startswith((_VALUES, _MASK))}  # noqa: SIM118
        masks = {}
        for name, (shape, dtype) in shapes.items():
            bits = np.unpackbits(file.get_tensor(_MASK + name).numpy(), bitorder="little")
            num_positions = prod(shape)
            mask = torch.from_numpy(bits[:num_positions].astype(bool))
            values = file.get_tensor(_VALUES + name)
            if int(mask.count_nonzero()) != len(values) or bits[num_positions:].any():
                raise _bad(path, f"the mask of {name} does not count {len(values)} values")
            dense = torch.zeros(num_positions, dtype=dtype)
            dense[mask] = values.to(dtype)
            state[name], masks[name] = dense.view(shape), mask.view(shape)
    for name, other in aliases.items():
        if not isinstance(other, str) or other not in state:
            raise _bad(path, f"{name} is said to be tied to {other!r}, which is not there")
        state[name] = state[other]
    return state, masks


def _check(file: Any, path: str | os.PathLike[str]) -> tuple[dict[str, tuple[list[int], torch.dtype]], dict[str, str]]:
    """The shapes and dtypes of the sparse tensors, after everything a file says has been found to fit together."""
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("regrow") != _FORMAT:
        found = metadata.get("regrow")
        raise _bad(path, f"its format is {found}, not {_FORMAT}" if found else "it was not written by regrow.save")
    keys = set(file.keys())
    shapes: dict[str, tuple[list[int], torch.dtype]] = {}
    for name, told in _json(metadata, "sparse", path).items():
        if not isinstance(told, dict) or not _is_shape(told.get("shape")) or told.get("dtype") not in _DTYPES:
            raise _bad(path, f"shape or dtype of {name} make no sense: {told!r}")
        shape: list[int] = told["shape"]
        if name in keys or not {_VALUES + name, _MASK + name} <= keys:
            raise _bad(path, f"the parts of {name} are not there, or there twice")
        values, mask = file.get_slice(_VALUES + name), file.get_slice(_MASK + name)
        num_positions = prod(shape)
        if mask.get_dtype() != "U8" or mask.get_shape() != [-(-num_positions // 8)]:
            raise _bad(path, f"the mask of {name} has not one bit for each of its {num_positions} positions")
        if len(values.get_shape()) != 1 or values.get_shape()[0] > num_positions:
            raise _bad(path, f"{name} has more values than positions")
        shapes[name] = (shape, _DTYPES[told["dtype"]])
    strangers = [key for key in keys if key.startswith((_VALUES, _MASK)) and key.partition(":")[2] not in shapes]
    if strangers:
        raise _bad(path, f"{strangers[0]} belongs to no tensor")
    return shapes, {key: metadata[key] for key in ("method", "step", "torch") if key in metadata}


def _is_shape(told: object) -> bool:
    return isinstance(told, list) and len(told) < 64 and all(type(size) is int and size >= 0 for size in told)


def _json(metadata: Mapping[str, str], key: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _bad(path, f"its metadata {key!r} cannot be read")
    return content


def _bad(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)} cannot be loaded: {why}")
