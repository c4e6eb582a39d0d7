"""Small files taken apart, changed, and put together again with a true checksum, as somebody would who means harm."""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from regrow.files.checksum import sealed


@dataclass
class Opened:
    """The entries of a file and its metadata, of which `kinds` and `modules` are read."""

    entries: dict[str, Tensor]
    kinds: list[Any]
    modules: dict[str, Any]
    metadata: dict[str, str]

    def add(self, name: str, entry: str, cell: object) -> None:
        """Tell of one more tensor, in a module and a kind of its own."""
        prefix, dot, leaf = name.rpartition(".")
        self.modules[prefix + dot] = [len(self.kinds), cell]
        self.kinds.append({leaf: entry})


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """A file to be changed; what is put into the metadata as it is goes before what was read from it."""
    with safe_open(path, framework="pt") as file:
        entries = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    metadata.pop("checksum")
    content = Opened(entries, json.loads(metadata.pop("kinds")), json.loads(metadata.pop("modules")), metadata)
    yield content
    told = {"kinds": json.dumps(content.kinds), "modules": json.dumps(content.modules)}
    save_file(content.entries, path, sealed(told | content.metadata, content.entries))


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a file and leave the rest."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    if metadata := header.get("__metadata__"):
        of_tensors = metadata.pop("checksum").partition("-")[2]
        of_header = sealed(metadata, {})["checksum"].partition("-")[0]
        metadata["checksum"] = f"{of_header}-{of_tensors}"
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])
