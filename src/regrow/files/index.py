"""What a small file says of itself: which tensors lie in which of its entries, without repetition, and what made it.

Modules of one kind have the same tensors in the same entries. A kind is told once, {tensor: entry}; each module is its
prefix, with the number of its kind and the shapes of its tensors, and for sparse ones how many values they have, and
the parameter and the length in bytes of the code of their positions. All this is JSON in the metadata of the file:

>>> pieces = {
...     "fc.weight": Piece("values:float32", (10, 4), 6, CodeInfo(2, 4)),
...     "fc.bias": Piece("dense:float32", (10,)),
...     "out.weight": Piece("values:float32", (2, 10), 3, CodeInfo(2, 2)),
...     "out.bias": Piece("dense:float32", (2,)),
... }
>>> for key, text in encode(Index(pieces)).items():
...     print(key, text)
kinds [{"weight":"values:float32","bias":"dense:float32"}]
modules {"fc.":[0,[[10,4],6,2,4],[10]],"out.":[0,[[2,10],3,2,2],[2]]}

Formats before 4 had masks in the place of codes, a bit for each position, and told nothing of them.

Reading checks it against itself; that it is true of the file is checked in `format`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeGuard

from regrow.files.positions import is_long_enough

DENSE, BUFFERS, VALUES, POSITIONS, MASKS = "dense:", "buffers:", "values:", "positions", "masks"
FLOATS = ("float16", "bfloat16", "float32", "float64")
_VALUES_OF = {VALUES + dtype for dtype in FLOATS}
_MADE_BY = ("method", "step", "torch")
_LARGEST = 2**63 - 1
# A file may tell of a few tensors, with some brackets and quotes, and of one more for each so many bytes.
_FEW_TENSORS, _FEW_SIGNS = 10_000, 100_000
_BYTES_PER_TENSOR, _BYTES_PER_SIGN = 32, 8
_LONG_NAME = 200
_TOO_MANY = "it tells of more tensors than a file of its length can have"


class CodeInfo(NamedTuple):
    """What is said of the code of a tensor's positions, which lies elsewhere."""

    parameter: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor's part of an entry; `active` counts the values of a sparse one, which has positions, too.

    These are a code, or in older files, where there is no `code`, a mask.
    """

    entry: str
    shape: tuple[int, ...]
    active: int | None = None
    code: CodeInfo | None = None

    @property
    def num_positions(self) -> int:
        return prod(self.shape)

    @property
    def num_stored(self) -> int:
        return self.num_positions if self.active is None else self.active

    @property
    def num_position_bytes(self) -> int:
        if self.active is None:
            return 0
        return -(-self.num_positions // 8) if self.code is None else self.code.num_bytes


@dataclass(frozen=True)
class Index:
    """Where the tensors of a file are, in the order of `by_module`; further names of tied ones; what made the file."""

    pieces: dict[str, Piece]
    aliases: dict[str, str] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)

    def layout(self) -> dict[str, dict[str, int]]:
        """For each entry of the file the tensors that are in it, one after the other, and how long their parts are."""
        entries: dict[str, dict[str, int]] = {}
        for name, piece in self.pieces.items():
            entries.setdefault(piece.entry, {})[name] = piece.num_stored
            if piece.active is not None:
                where = MASKS if piece.code is None else POSITIONS
                entries.setdefault(where, {})[name] = piece.num_position_bytes
        return entries

    def origins(self) -> dict[str, str]:
        """All names of tensors, and under which one each is stored."""
        return {name: name for name in self.pieces} | self.aliases

    def sparse_names(self) -> list[str]:
        """All names of the sparse ones."""
        return [name for name, first in self.origins().items() if self.pieces[first].active is not None]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.pieces[first].shape for name, first in self.origins().items()}


def by_module(names: Iterable[str]) -> list[str]:
    """Names as an index has them: those of a module together, modules in the order in which they first come.

    >>> by_module(["fc.weight", "out.weight", "fc.bias"])
    ['fc.weight', 'fc.bias', 'out.weight']
    """
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(_split(name)[0], []).append(name)
    return [name for own in modules.values() for name in own]


def encode(index: Index) -> dict[str, str]:
    """The metadata that tells an index."""
    modules: dict[str, dict[str, Piece]] = {}
    for name, piece in index.pieces.items():
        prefix, leaf = _split(name)
        modules.setdefault(prefix, {})[leaf] = piece
    numbers: dict[tuple[tuple[str, str], ...], int] = {}
    rows: dict[str, list[object]] = {}
    for prefix, pieces in modules.items():
        kind = tuple((leaf, piece.entry) for leaf, piece in pieces.items())
        cells = (p.shape if p.active is None else (p.shape, p.active, *(p.code or ())) for p in pieces.values())
        rows[prefix] = [numbers.setdefault(kind, len(numbers)), *cells]
    told: dict[str, object] = {"kinds": [dict(kind) for kind in numbers], "modules": rows}
    if index.aliases:
        told["aliases"] = index.aliases
    return {key: json.dumps(content, separators=(",", ":")) for key, content in told.items()} | index.made_by


def decode(metadata: Mapping[str, str], num_bytes: int) -> Index:
    """The index that metadata tells in a file of some length; a ValueError where it makes no sense.

    Empty tensors take no room in a file, but much in memory: a file that is little but names is refused, and that
    before its JSON is read.
    """
    told = [metadata.get(key, "") for key in ("kinds", "modules", "aliases")]
    if sum(text.count(sign) for text in told for sign in '[{"') > _FEW_SIGNS + num_bytes // _BYTES_PER_SIGN:
        raise ValueError(_TOO_MANY)
    most = _FEW_TENSORS + num_bytes // _BYTES_PER_TENSOR
    pieces = _read_pieces(_read_json(metadata, "kinds", list), _read_json(metadata, "modules", dict), most)
    aliases = _read_json(metadata, "aliases", dict)
    for name, first in aliases.items():
        if name in pieces or not isinstance(first, str) or first not in pieces:
            raise ValueError(f"it ties {name} to something that it does not have, or has it twice")
    return Index(pieces, aliases, {key: metadata[key] for key in _MADE_BY if key in metadata})


def _read_pieces(kinds: list[Any], modules: dict[str, Any], most: int) -> dict[str, Piece]:
    if not all(isinstance(kind, dict) and all(map(_is_entry, kind.values())) for kind in kinds):
        raise ValueError("it has tensors in entries that are none")
    pieces: dict[str, Piece] = {}
    num_letters = 0
    for prefix, row in modules.items():
        kind = kinds[row[0]] if isinstance(row, list) and row and _is_count(row[0]) and row[0] < len(kinds) else None
        if kind is None or len(row) != 1 + len(kind):
            raise ValueError(f"the module {prefix!r} is like no kind that it tells")
        num_letters += len(prefix) * len(kind) + sum(map(len, kind))
        if num_letters > _LONG_NAME * most:
            raise ValueError("its names are too long")
        if len(pieces) + len(kind) > most:
            raise ValueError(_TOO_MANY)
        for (leaf, entry), cell in zip(kind.items(), row[1:], strict=True):
            if prefix + leaf in pieces:
                raise ValueError(f"it has {prefix + leaf} twice")
            pieces[prefix + leaf] = _read_piece(prefix + leaf, entry, cell)
    return pieces


def _split(name: str) -> tuple[str, str]:
    """The prefix of a name, with its dot, and the rest."""
    prefix, dot, leaf = name.rpartition(".")
    return prefix + dot, leaf


def _read_piece(name: str, entry: str, cell: Any) -> Piece:
    is_sparse = entry.startswith(VALUES)
    shape, active, code = cell, None, []
    if is_sparse and isinstance(cell, list) and len(cell) in (2, 4):
        shape, active, *code = cell
    if not isinstance(shape, list) or len(shape) > 64 or not all(map(_is_count, shape)):
        raise ValueError(f"the shape of {name} makes no sense")
    if prod(max(size, 1) for size in shape) > _LARGEST:
        raise ValueError(f"{name} would have more positions than can be counted")
    if is_sparse and (not _is_count(active) or active > prod(shape)):
        raise ValueError(f"{name} would have more values than positions, or no number of them")
    if not code:
        return Piece(entry, tuple(shape), active)
    parameter, num_bytes = code
    if not (_is_count(parameter) and _is_count(num_bytes) and active is not None):
        raise ValueError(f"what is said of the positions of {name} makes no sense")
    if not is_long_enough(num_bytes, parameter, prod(shape), active):
        raise ValueError(f"{name} would have more positions than {num_bytes:,} bytes can tell of")
    return Piece(entry, tuple(shape), active, CodeInfo(parameter, num_bytes))


def _is_entry(told: object) -> bool:
    return isinstance(told, str) and (told.startswith((DENSE, BUFFERS)) or told in _VALUES_OF)


def _is_count(told: object) -> TypeGuard[int]:
    return type(told) is int and 0 <= told <= _LARGEST


def _read_json(metadata: Mapping[str, str], key: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """A list or a dict, an empty one where there is none; a name that is there twice in one place is an error."""
    if key not in metadata:
        return kind()
    try:
        content = json.loads(metadata[key], object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise ValueError(f"its metadata {key!r} cannot be read")
    return content


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name is there twice")
    return content
