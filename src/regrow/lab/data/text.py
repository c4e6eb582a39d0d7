"""Text as bytes on the device: windows of it to train on, a network tells each next byte."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from regrow.core.random import bits, key
from regrow.lab.config.component import Settings, component
from regrow.lab.data.cache import sha256
from regrow.lab.data.named import NamedData
from regrow.lab.data.on_device import OnDevice
from regrow.lab.data.score import BITS_PER_BYTE, Score
from regrow.lab.data.sources import Progress
from regrow.methods.method import is_whole

if TYPE_CHECKING:
    from regrow.lab.config import Config
    from regrow.lab.models.model import Inputs, Model

NUM_BYTES = 256
_WINDOW = int.from_bytes(b"window")
_SHARE = 0.05  # of a text is its test, and as much before that is for searching
_ENOUGH_TO_SEARCH = 1_000_000  # bytes of that; on all of enwik8's a trial would be judged about as long as trained
_TESTED_AT_ONCE = 1 << 14  # bytes
_EPOCHS = 10


@dataclass(frozen=True, eq=False)
class Text(OnDevice):
    """Bytes, read in windows of `context` bytes and the one after each of them.

    A window to train on begins anywhere; those of an epoch, `num_windows`, are drawn from (seed, epoch). Those to test
    on lie side by side, so that all but the last few bytes are told once.
    """

    name: str
    train: Tensor
    test: Tensor
    context: int
    num_windows: int

    @property
    def num_train(self) -> int:
        """How many windows an epoch has."""
        return self.num_windows

    @property
    def num_test(self) -> int:
        """How many windows fit side by side into what is tested."""
        return (len(self.test) - 1) // self.context

    @property
    def test_batch_size(self) -> int:
        """How many windows are tested at once."""
        return max(1, _TESTED_AT_ONCE // self.context)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of what a network is given at once."""
        return (self.context,)

    @property
    def num_classes(self) -> int:
        """What a byte can be."""
        return NUM_BYTES

    @property
    def device(self) -> torch.device:
        """Where all bytes are."""
        return self.train.device

    def order(self, epoch: int, seed: int) -> Tensor:
        """Where windows begin."""
        random = bits(key(seed, epoch, _WINDOW), torch.arange(self.num_windows, device=self.device))
        return random.remainder(len(self.train) - self.context)

    def batch(self, chosen: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """The windows that begin there."""
        return self._windows(self.train, chosen)

    def test_batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The windows with these numbers."""
        return self._windows(self.test, chosen * self.context)

    def _windows(self, text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of each window, and the byte after each of them."""
        bytes_ = text[starts[:, None] + torch.arange(self.context + 1, device=text.device)]
        return bytes_[:, :-1].long(), bytes_[:, 1:].long()


@dataclass(frozen=True, kw_only=True)
class TextData(NamedData):
    """A text: the last 5 % are its test, the 5 % before for searching, the rest is to train on.

    `held_out`: 0.05 to be tested on the part for searching, its first million bytes, and leave the test unread.
    `test_bytes`: be tested on so many bytes, the first of either part.
    """

    score: ClassVar[Score] = BITS_PER_BYTE

    held_out: float = 0.0
    test_bytes: int | None = None

    def check(self) -> None:
        if self.held_out not in (0.0, _SHARE):
            raise ValueError(
                f"data.held_out of a text is {_SHARE}, the part before its test, or 0, got {self.held_out!r}"
            )
        if self.test_bytes is not None and (not is_whole(self.test_bytes) or self.test_bytes < 2):
            raise ValueError(f"data.test_bytes must be a whole number >= 2, got {self.test_bytes!r}")

    @property
    def inputs(self) -> "Inputs":
        from regrow.lab.models.model import Shape

        return Shape((1,), NUM_BYTES)

    @property
    def is_for_searching(self) -> bool:
        return self.held_out > 0

    @property
    def tested_on(self) -> str:
        first = "" if self.test_bytes is None else f"first {self.test_bytes:,} bytes of the "
        return f"{first}{super().tested_on or 'test'}" if first else super().tested_on

    def for_searching(self) -> Self:
        return replace(self, held_out=_SHARE)

    def check_against(self, model: "Model") -> None:
        if not hasattr(model, "context"):
            raise ValueError(f"{model} does not read text; choose a language model such as gpt, or images for it")

    def for_run(self, data: Any, config: "Config") -> Text:
        """In windows as long as the model's context; an epoch of a run of so many steps is a tenth of it."""
        context: int = config.model.context  # type: ignore[attr-defined]
        shorter = min(len(data.train), len(data.test))
        if shorter <= context:
            raise ValueError(
                f"{self.title} has a part of {shorter} bytes, too few for a context of {context} and a byte to tell; "
                f"make model.context smaller than {shorter}, or choose a longer text"
            )
        num_windows = (len(data.train) - 1) // context
        if config.max_steps is not None:
            num_windows = max(1, config.duration // _EPOCHS) * config.batch_size
        made: Text = replace(data, context=context, num_windows=num_windows)
        return made

    def read_text(self, path: Path, device: torch.device | str) -> Text:
        """The parts of a file that are trained and tested on."""
        length = path.stat().st_size
        searched, tested = (length - round(share * length) for share in (2 * _SHARE, _SHARE))
        train = _read(path, 0, searched, device)
        test = _read(path, searched, tested, device) if self.held_out else _read(path, tested, length, device)
        num_tested = self.test_bytes or (_ENOUGH_TO_SEARCH if self.held_out else None)
        return Text(self.name, train, test[:num_tested], context=1, num_windows=len(train) - 1)


def _read(path: Path, first: int, end: int, device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8, end - first, offset=first)).to(device)


@component
class TextFile(TextData):
    """A file of yours as bytes: "text:PATH"."""

    name: ClassVar[str] = "text"

    path: str
    digest: str
    """The first figures of its SHA-256: with other bytes in it, it is another data set."""

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        kind, colon, path = text.partition(":")
        if kind != cls.name:
            return None
        return {"path": path} if colon and path else {}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """The same file from wherever it is named; one that is named for the first time is looked at."""
        told = dict(given)
        if isinstance(told.get("path"), str):
            path = Path(told["path"]).expanduser().resolve()
            told["path"] = str(path)
            if "digest" not in told:
                told["digest"] = _digest_of(path)
        return super().read(told)

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{Path(self.path).name} ({self.digest[:8]})"

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Text:
        path = Path(self.path)
        if _digest_of(path) != self.digest:
            raise ValueError(
                f"{path} is not what it was when this run was told of; name it again, for a run of its own"
            )
        return self.read_text(path, device)


def _digest_of(path: Path) -> str:
    try:
        stat = path.stat()
        return _digest(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); text:PATH is for a file") from None


@cache
def _digest(path: Path, changed: int, length: int) -> str:
    """An experiment names the same file many times."""
    return sha256(path)[:16]
