"""Data sets that are fetched: their files, where to get them, how to read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from regrow.lab.data.cache import obtain
from regrow.lab.data.dataset import Augmentation, Dataset, Splits, place
from regrow.lab.data.named import NamedData
from regrow.lab.data.sources import Progress, Source


@dataclass(frozen=True)
class Recipe:
    """All there is to know about one data set; digests are SHA-256, of the unpacked files."""

    digests: Mapping[str, str]
    sources: tuple[Source, ...]
    read: Callable[[Path], Splits]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = "none"
    image_shape: tuple[int, ...] = (1, 28, 28)
    num_classes: int = 10


class Fetched(NamedData):
    """A data set that a recipe describes."""

    recipe: ClassVar[Recipe]
    can_be_fetched: ClassVar[bool] = True

    @property
    def inputs(self) -> Recipe:
        return self.recipe

    def fetch(self, root: Path | str | None = None, progress: Progress | None = None) -> Path:
        return obtain(self.name, self.recipe.digests, self.recipe.sources, root, progress)

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Dataset:
        recipe = self.recipe
        return place(
            recipe.read(self.fetch(root, progress)),
            name=self.name,
            num_classes=recipe.num_classes,
            mean=recipe.mean,
            std=recipe.std,
            augmentation=recipe.augmentation,
            device=device,
        )
