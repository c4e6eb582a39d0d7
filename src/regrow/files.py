"""Small files of models: saved with the active values of their sparse layers only, loaded, described."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.file_format import DTYPES, MASK, VALUES, SparseTensor, bad, check, open_file, pick, read, read_json, write
from regrow.names import clean, unwrap
from regrow.packed_files import Part, fill, names_of_vectors, positions_in, values_and_bits
from regrow.sparsifier import Sparsifier, sparsifiers_of
from regrow.storage.pack import Slot
from regrow.storage.packed_layers import packed_slots
from regrow.summary import LayerInfo, summarise


@dataclass(frozen=True)
class Description:
    """What is in a file: its sparse layers, how many other numbers there are, how long it is, and what made it."""

    layers: tuple[LayerInfo, ...]
    num_dense: int
    num_bytes: int
    num_header_bytes: int
    made_by: dict[str, str]

    @property
    def num_parameters(self) -> int:
        """All numbers that are stored, those of dense tensors and buffers included."""
        return self.num_dense + sum(layer.active for layer in self.layers)

    @property
    def num_positions(self) -> int:
        """Where active values could be."""
        return sum(prod(layer.shape) for layer in self.layers)

    @property
    def description_length(self) -> int:
        """In bytes: 32 bits for every number that is stored and a bit for every position."""
        return -(-(32 * self.num_parameters + self.num_positions) // 8)

    def __str__(self) -> str:
        made_by = [f"{key} {value}" for key, value in self.made_by.items()]
        title = ", ".join([f"{self.num_bytes:,} bytes", f"{self.num_parameters:,} numbers", *made_by])
        return summarise(title, list(self.layers)) if self.layers else title


def save(
    path: str | os.PathLike[str], model: nn.Module, sparse: Sparsifier | None = None, *, values: str | None = None
) -> None:
    """Write a model with only the active values of its sparse layers.

    Without a sparsifier whatever is not 0 counts as active, in every tensor that gets smaller that way. `values`:
    "bfloat16" or "float32" to store active values with another precision than they have.
    """
    if values is not None and values not in DTYPES:
        raise ValueError(f"values must be one of {', '.join(map(repr, DTYPES))} or None, got {values!r}")
    tensors, aliases = _tensors_of(model)
    packed = _packed_of(model, aliases)
    if sparse is not None and packed and set(packed) != {layer.name for layer in sparse.layers}:
        raise ValueError("the model is packed, but not by this sparsifier; pass the one that belongs to it")
    masks = _nonzeros(tensors) if sparse is None else {} if packed else _masks_of(sparse, tensors)
    parts = {name: pick(tensors.pop(name), mask) for name, mask in masks.items()}
    parts |= {name: SparseTensor(tuple(slot.layer.shape), *values_and_bits(slot)) for name, slot in packed.items()}
    made_by = {} if sparse is None else {"method": repr(sparse.method), "step": str(sparse.step)}
    write(path, tensors, parts, aliases=aliases, made_by=made_by, values=values)


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
    content = read(path)
    own_names = {clean(name): name for name in model.state_dict()}
    model.load_state_dict({own_names.get(name, name): tensor for name, tensor in content.state.items()})
    return content.masks


def _load_packed(path: str | os.PathLike[str], model: nn.Module) -> None:
    with open_file(path) as file:
        shapes, _ = check(file, path)
        aliases = read_json(file.metadata() or {}, "aliases", path)
        state = {key: file.get_tensor(key) for key in file.keys() if not key.startswith((VALUES, MASK))}  # noqa: SIM118
        parts = {}
        for name, (shape, dtype) in shapes.items():
            positions, values = positions_in(file.get_tensor(MASK + name)), file.get_tensor(VALUES + name)
            if len(positions) != len(values) or (len(positions) and int(positions[-1]) >= prod(shape)):
                raise bad(path, f"the mask of {name} does not count {len(values)} values")
            parts[name] = Part(tuple(shape), values.to(dtype), positions)
    for name, other in aliases.items():
        if not isinstance(other, str) or (other not in parts and other not in state):
            raise bad(path, f"it ties {name} to something that it does not have")
        (parts if other in parts else state)[name] = (parts if other in parts else state)[other]
    strange = set(parts) - set(packed_slots(model))
    state |= {name: parts.pop(name).dense() for name in strange}
    own_names = {clean(name): name for name in model.state_dict()}
    state = {own_names.get(name, name): tensor for name, tensor in state.items()}
    missing = set(own_names.values()) - set(state) - names_of_vectors(model)
    if missing:
        raise bad(path, f"it has no {sorted(missing)[0]}")
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own or name in names_of_vectors(model):
            raise bad(path, f"the model has no {name} of its own")
        if tensor.shape != own[name].shape:
            raise bad(path, f"{name} has shape {tuple(tensor.shape)}, in the model {tuple(own[name].shape)}")
    fill(model, parts)
    model.load_state_dict(state, strict=False)


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a file, dense, by the names of `model.state_dict()`."""
    return read(path).state


def describe(path: str | os.PathLike[str]) -> Description:
    """What is in a file, without reading the weights themselves."""
    with open_file(path) as file:
        shapes, made_by = check(file, path)
        layers = []
        for name, (shape, _) in shapes.items():
            active = file.get_slice(VALUES + name).get_shape()[0]
            layers.append(LayerInfo(name, tuple(shape), active, 1 - active / max(prod(shape), 1)))
        plain = [key for key in file.keys() if not key.startswith((VALUES, MASK))]  # noqa: SIM118
        num_dense = sum(prod(file.get_slice(key).get_shape()) for key in plain)
    with Path(path).open("rb") as raw:
        num_header_bytes = 8 + int.from_bytes(raw.read(8), "little")
    return Description(tuple(layers), num_dense, Path(path).stat().st_size, num_header_bytes, made_by)


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
        if name.startswith((VALUES, MASK)):
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
