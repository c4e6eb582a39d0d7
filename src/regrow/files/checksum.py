"""Checksums in the metadata of a safetensors file: what is read is what was written, bit for bit, or it is refused.

There are two in one: of the other metadata, so that a header can be trusted by itself, and of the tensors with their
names, dtypes and shapes. They find what a disk or a wire does to a file, not what somebody does on purpose.
"""

import json
from collections.abc import Mapping
from zlib import crc32

import torch
from torch import Tensor

_KEY = "checksum"


def sealed(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Metadata with the checksums of itself and of the tensors."""
    return {**metadata, _KEY: f"{_of_metadata(metadata):08x}-{_of_tensors(tensors):08x}"}


def is_sealed(metadata: Mapping[str, str]) -> bool:
    return _KEY in metadata


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that is not what was sealed."""
    others = {key: text for key, text in metadata.items() if key != _KEY}
    _compare(metadata.get(_KEY, "").partition("-")[0], _of_metadata(others), "header")


def check_tensors(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those that were sealed."""
    _compare(metadata.get(_KEY, "").partition("-")[2], _of_tensors(tensors), "tensors")


def _compare(told: str, found: int, what: str) -> None:
    if told != f"{found:08x}":
        raise ValueError(f"it is damaged: its {what} do not match the checksum; fetch or write it again")


def _of_metadata(metadata: Mapping[str, str]) -> int:
    return crc32(json.dumps(sorted(metadata.items())).encode())


def _of_tensors(tensors: Mapping[str, Tensor]) -> int:
    """One after the other, by name."""
    found = 0
    for name, tensor in sorted(tensors.items()):
        found = crc32(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode(), found)
        found = crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return found
