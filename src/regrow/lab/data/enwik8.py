"""The first 100,000,000 bytes of an English Wikipedia (Hutter, 2006)."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from regrow.lab.config.component import component
from regrow.lab.data.cache import obtain
from regrow.lab.data.sources import Progress, pypi_package, web_archive
from regrow.lab.data.text import Text, TextData

_FILE = "enwik8"
_DIGESTS = {_FILE: "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"}
_SOURCES = (
    web_archive("http://mattmahoney.net/dc/enwik8.zip", (_FILE,)),
    pypi_package("mingru-pytorch==0.2.1", (_FILE,)),
)


@component
class Enwik8(TextData):
    """Bytes of Wikipedia: 90,000,000 to train on, 5,000,000 for searching, 5,000,000 to test."""

    name: ClassVar[str] = "enwik8"
    title: ClassVar[str] = "enwik8"
    can_be_fetched: ClassVar[bool] = True

    def fetch(
        self, root: Path | str | None = None, progress: Progress | None = None, paths: Sequence[Path] = ()
    ) -> Path:
        if paths:
            raise ValueError("enwik8 is not made of files of yours; leave --from out, and it is fetched")
        return obtain(self.name, _DIGESTS, _SOURCES, root, progress)

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Text:
        return self.read_text(self.fetch(root, progress) / _FILE, device)
