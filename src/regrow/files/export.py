"""Files for other programs: what `regrow.save` wrote as plain safetensors, as a state_dict, or as CSR matrices."""

import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from regrow.core.names import suggest
from regrow.files.atomic import write_bytes
from regrow.files.format import pick, read, write
from regrow.files.stored import Content
from regrow.methods import METHODS

_ENDINGS = {".safetensors": "dense", ".pt": "state_dict", ".pth": "state_dict", ".onnx": "onnx"}


def export(source: str | os.PathLike[str], out: str | os.PathLike[str], format: str | None = None) -> None:
    """Turn a file that `regrow.save` wrote into one that other programs read.

    `format`: "dense" (plain safetensors, zeros written out), "state_dict" (the same for `torch.load`), "csr" (a
    state_dict with sparse weights as CSR matrices) or "sparse" (that of `regrow.save`); without it, what the ending of
    `out` means. For ONNX see `regrow.export_onnx`.
    """
    format = choose_format(out, format)
    if format == "onnx":
        raise ValueError(
            f"ONNX needs the network, and {os.fspath(source)} has only its weights; give the folder of a run, or call "
            "regrow.export_onnx(path, model, example_input) in Python"
        )
    if Path(source).resolve() == Path(out).resolve():
        raise ValueError(f"{os.fspath(out)} would be written over itself; name another file")
    content = read(source)
    method = METHODS.get(content.made_by.get("method", "").partition("(")[0])
    if method is not None and method.storage == "hashed":
        raise ValueError(
            f"{os.fspath(source)} holds values that positions share by a hash, and not the seed of the hash; load it "
            "into a model attached with the same seed, detach() its sparsifier, and save that"
        )
    export_content(content, out, format)


def choose_format(out: str | os.PathLike[str], format: str | None) -> str:
    """The format that is asked for, or that the ending of a file means.

    >>> choose_format("model.pt", None), choose_format("model.pt", "csr")
    ('state_dict', 'csr')
    """
    if format is None:
        ending = Path(out).suffix
        if ending not in _ENDINGS:
            raise ValueError(f"what to write into {os.fspath(out)}? Say a format: {', '.join(FORMATS)}")
        return _ENDINGS[ending]
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; {suggest(format, FORMATS)}")
    return format


def check_place(out: str | os.PathLike[str]) -> None:
    """Refuse a path that no file can be written to, before any work is done for it."""
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}; make it first")


def export_content(content: Content, out: str | os.PathLike[str], format: str) -> None:
    """Write tensors and masks, wherever they come from, in one of the formats that need no network."""
    check_place(out)
    _WRITERS[format](Path(out), content)


def as_csr(weight: Tensor, mask: Tensor) -> Tensor:
    """The active values of a weight as a CSR matrix with a row per output; an active 0 is stored like any other.

    >>> csr = as_csr(torch.tensor([[0.0, 5.0], [0.0, 7.0]]), torch.tensor([[False, True], [True, True]]))
    >>> csr.crow_indices().tolist(), csr.col_indices().tolist(), csr.values().tolist()
    ([0, 1, 3], [1, 0, 1], [5.0, 0.0, 7.0])
    """
    rows = mask.flatten(1)
    dtype = torch.int32 if rows.numel() < 2**31 else torch.int64
    ends = rows.sum(1).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends]).to(dtype)
    columns = rows.nonzero()[:, 1].to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR is in beta, which whoever asks for it knows
        return torch.sparse_csr_tensor(starts, columns, weight[mask], tuple(rows.shape), check_invariants=True)


def _write_dense(out: Path, content: Content) -> None:
    """The format refuses tensors that share memory, so tied ones are written twice."""
    ties = _ties(content.state)
    stored = {name: tensor.clone() if name in ties else tensor for name, tensor in content.state.items()}
    payload = to_bytes(stored, {"format": "pt"})
    write_bytes(out, payload)


def _write_state_dict(out: Path, content: Content) -> None:
    _pickle(out, content.state)


def _pickle(out: Path, stored: Mapping[str, object]) -> None:
    """By way of memory: torch would not tell that a disk is full."""
    payload = io.BytesIO()
    torch.save(stored, payload)
    write_bytes(out, payload.getbuffer())


def _write_csr(out: Path, content: Content) -> None:
    """Vectors that happen to be sparse stay dense: they have no rows."""
    ties = _ties(content.state)
    matrices = {
        name: as_csr(content.state[name], mask)
        for name, mask in content.masks.items()
        if mask.dim() > 1 and mask.numel()
    }
    stored: dict[str, object] = {}
    for name, tensor in content.state.items():
        first = ties.get(name, name)
        stored[name] = matrices.get(first, tensor)
        if first in matrices:
            stored[f"shape:{name}"] = list(tensor.shape)
    _pickle(out, stored)


def _write_sparse(out: Path, content: Content) -> None:
    ties = _ties(content.state)
    plain = {name: t for name, t in content.state.items() if name not in ties and name not in content.masks}
    parts = {name: pick(content.state[name], mask) for name, mask in content.masks.items()}
    write(out, plain, parts, aliases=ties, made_by=content.made_by, buffers=content.buffers)


def _ties(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Further names of a tensor that is there under several, and the first."""
    firsts: dict[int, str] = {}
    return {name: first for name, tensor in state.items() if (first := firsts.setdefault(id(tensor), name)) != name}


_WRITERS: dict[str, Callable[[Path, Content], None]] = {
    "dense": _write_dense,
    "state_dict": _write_state_dict,
    "csr": _write_csr,
    "sparse": _write_sparse,
}
FORMATS = (*_WRITERS, "onnx")
