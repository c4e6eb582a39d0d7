"""Small files of models: saved with the active values of their sparse layers only, loaded, described."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from regrow.core.names import clean, unwrap
from regrow.distributed.dtensor import is_sharded, like, part_like
from regrow.distributed.sharding import is_first_of, on_first_of
from regrow.distributed.wrappers import reshard
from regrow.files.atomic import read_steadily
from regrow.files.format import read, read_index, read_stored, write
from regrow.files.index import BUFFERS
from regrow.files.packed import choices_to_load, fill, keys_of_vectors, names_of, packable, pick_packed
from regrow.files.positions import entropy
from regrow.files.stored import DTYPES, bad
from regrow.files.whole import collect
from regrow.kernels.cpu.choose import Choices
from regrow.sparsifier.live import steps_of
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.sparsifier.summary import LayerInfo, summarise
from regrow.storage.base import StorageKind
from regrow.storage.packed.given import pack_given
from regrow.storage.packed.layers import packed_slots
from regrow.storage.packed.meta import check_can_be_filled, make_room
from regrow.storage.packed.slot import Slot


@dataclass(frozen=True)
class Description:
    """What is in a file: its sparse layers, how many other numbers there are, how long it is, and what made it."""

    layers: tuple[LayerInfo, ...]
    num_dense: int
    num_buffers: int
    num_bytes: int
    num_header_bytes: int
    num_position_bytes: int
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

    @property
    def entropy_of_positions(self) -> float:
        """In bytes: the least that tells which positions are active, were all choices in each layer alike."""
        return sum(entropy(prod(layer.shape), layer.active) for layer in self.layers) / 8

    def __str__(self) -> str:
        buffers = f" (of which {self.num_buffers:,} are buffers)" if self.num_buffers else ""
        others = [f"{key} {value}" for key, value in self.made_by.items() if key != "method"]
        first = ", ".join([f"{self.num_bytes:,} bytes", f"{self.num_parameters:,} numbers{buffers}", *others])
        method = textwrap.wrap(self.made_by.get("method", ""), 100, subsequent_indent="    ")
        title = "\n".join([first, *method])
        return summarise(title, list(self.layers)) if self.layers else title


def save(
    path: str | os.PathLike[str], model: nn.Module, sparse: Sparsifier | None = None, *, values: str | None = None
) -> None:
    """Write a model with only the active values of its sparse layers.

    Without a sparsifier whatever is not 0 counts as active, in every tensor that gets smaller that way even with a bit
    for each position. `values`: "bfloat16" or "float32" to store active values with another precision than they have.
    Where the model is spread over ranks all of them call this, and the first one writes.
    """
    if values is not None and values not in DTYPES:
        raise ValueError(f"values must be one of {', '.join(map(repr, DTYPES))} or None, got {values!r}")
    tensors, aliases = _tensors_of(model)
    packed = _packed_of(model, aliases)
    if sparse is not None and packed and set(packed) != {layer.name for layer in sparse.layers}:
        raise ValueError("the model is packed, but not by this sparsifier; pass the one that belongs to it")
    masks = None if sparse is None else {} if packed else _masks_of(sparse, tensors)
    dense, parts = collect(tensors, masks, keeps=is_first_of(tensors.values()))
    parts |= {name: pick_packed(slot) for name, slot in packed.items()}
    made_by = {} if sparse is None else {"method": repr(sparse.method), "step": str(sparse.num_steps)}
    buffers = {clean(name) for name, _ in unwrap(model).named_buffers(remove_duplicate=False)}
    on_first_of(
        tensors.values(),
        lambda: write(path, dense, parts, aliases=aliases, made_by=made_by, buffers=buffers, values=values),
    )


def load(path: str | os.PathLike[str], model: nn.Module, *, storage: str | StorageKind = "dense") -> dict[str, Tensor]:
    """Fill a model from a file.

    A plain one gets dense weights; what comes back are the masks of its sparse layers, e.g. for `attach(...,
    start=masks)`. A packed one, attached before with the same budget, gets the file's topology with the values, and
    nothing comes back. What of a model is on the meta device becomes real.

    `storage="packed"` is for using a model that is not trained any more: its sparse linear and convolution layers and
    attention projections are packed, with no optimizer and without ever being dense. It is in evaluation mode then,
    nothing in it requires a gradient, and nothing comes back. On a CPU layers compute on their values alone, unless
    `regrow.Packed(kernels=...)` says otherwise.
    """
    choices = choices_to_load(storage)
    whole, model = model, unwrap(model)
    if choices is not None:
        _load_to_use(path, model, choices)
        whole.requires_grad_(False).eval()
        return {}
    if packed_slots(model):
        _load_packed(path, model)
        return {}
    if any(steps.rewirable for steps in steps_of(list(model.parameters()))):
        raise ValueError("the model is attached to a sparsifier; load first, then attach(..., start=masks)")
    stored = read_stored(path)
    own_names = _own_names(path, model.state_dict(), stored.index.shapes())
    check_can_be_filled(model)
    content = stored.content()
    make_room(model)
    own = model.state_dict()
    state = {own_names[name]: tensor for name, tensor in content.state.items()}
    model.load_state_dict({key: like(part_like(tensor, own[key]), own[key]) for key, tensor in state.items()})
    return content.masks


def _load_to_use(path: str | os.PathLike[str], model: nn.Module, choices: Choices) -> None:
    """Pack what of a plain model can be, and fill the rest."""
    if packed_slots(model):
        raise ValueError("the model is packed already; leave out storage to fill it, or build it anew")
    if steps_of(list(model.parameters())):
        raise ValueError("the model is attached to a sparsifier; detach() it first, or build the model anew")
    stored = read_stored(path)
    origins = stored.index.origins()
    own_names = _own_names(path, model.state_dict(), stored.index.shapes())
    check_can_be_filled(model)
    if name := next((name for name, own in model.named_parameters() if is_sharded(own)), None):
        raise ValueError(f"{name} is a DTensor, spread over ranks by torch, which packed storage cannot hold")
    chosen = packable(model, stored.index.sparse_names())
    if not chosen:
        raise bad(path, "it has no sparse layer that can be packed; leave out storage")
    packed = names_of(model, [parameter for _, parameter in chosen])
    state = {own_names[name]: stored.tensor(first) for name, first in origins.items() if name not in packed}
    pack_given(model, chosen, lambda name: stored.part(origins[name]), choices)
    make_room(model)
    model.load_state_dict(state, strict=False)


def _load_packed(path: str | os.PathLike[str], model: nn.Module) -> None:
    stored = read_stored(path)
    slots, vectors = packed_slots(model), keys_of_vectors(model)
    origins = stored.index.origins()
    packed = [name for name in stored.index.sparse_names() if name in slots]
    shapes = {name: shape for name, shape in stored.index.shapes().items() if name not in packed}
    own_names = _own_names(path, {k: own for k, own in model.state_dict().items() if k not in vectors}, shapes)
    state = {own_names[name]: stored.tensor(origins[name]) for name in shapes}
    fill(model, {name: stored.part(origins[name]) for name in packed})
    model.load_state_dict(state, strict=False)


def _own_names(
    path: str | os.PathLike[str], own: Mapping[str, Tensor], given: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """What a model calls that which a file has; refused, before anything is filled, if they are not alike."""
    names = {clean(key): key for key in own}
    wrong = [f"it has no {name}, which the model has" for name in names if name not in given]
    wrong += [f"the model has no {name} of its own" for name in given if name not in names]
    shapes = {name: tuple(own[key].shape) for name, key in names.items() if not is_lazy(own[key])}
    wrong += [
        f"{name} has shape {given[name]}, in the model {shape}"
        for name, shape in shapes.items()
        if name in given and given[name] != shape
    ]
    if wrong:
        others = f", and {len(wrong) - 3} more like that" if len(wrong) > 3 else ""
        raise bad(path, f"{'; '.join(wrong[:3])}{others}; build the model that was saved, or see regrow.load_tensors")
    return names


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All tensors of a file, dense, by the names of `model.state_dict()`."""
    return read(path).state


def describe(path: str | os.PathLike[str]) -> Description:
    """What is in a file, without reading the weights themselves."""
    return read_steadily(Path(path), lambda: _describe(path))


def _describe(path: str | os.PathLike[str]) -> Description:
    index = read_index(path)
    layers = [
        LayerInfo(name, piece.shape, piece.active, 1 - piece.active / max(piece.num_positions, 1))
        for name, piece in index.pieces.items()
        if piece.active is not None
    ]
    pieces = index.pieces.values()
    with Path(path).open("rb") as raw:
        num_header_bytes = 8 + int.from_bytes(raw.read(8), "little")
    return Description(
        tuple(layers),
        num_dense=sum(piece.num_stored for piece in pieces if piece.active is None),
        num_buffers=sum(piece.num_stored for piece in pieces if piece.entry.startswith(BUFFERS)),
        num_bytes=Path(path).stat().st_size,
        num_header_bytes=num_header_bytes,
        num_position_bytes=sum(piece.num_position_bytes for piece in pieces),
        made_by=index.made_by,
    )


def _tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a model's state, each once, and the further names of those that are tied."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    vectors = keys_of_vectors(model)
    reshard(model)
    for key, value in unwrap(model).state_dict(keep_vars=True).items():
        name = clean(key)
        if key in vectors:
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} in the model's state is no tensor but {type(value).__name__}; it cannot be saved")
        place = _place(value)
        if value.numel() and place in seen:
            aliases[name] = seen[place]
            continue
        seen[place] = name
        tensors[name] = value
    return tensors, aliases


def _place(tensor: Tensor) -> tuple[object, ...]:
    """What tells a tensor from others, and is the same under all names of a tied one."""
    if is_sharded(tensor):
        return (id(tensor),)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg(), tensor.is_conj()


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
    masks = sparse.masks()
    for name, mask in masks.items():
        if name not in tensors or tensors[name].shape != mask.shape:
            raise ValueError(f"the model has no tensor {name!r} like the sparsifier's; do they belong together?")
    return masks
