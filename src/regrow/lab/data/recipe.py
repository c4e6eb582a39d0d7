"""Data sets that are fetched: their files, where to get them, how to read them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from regrow.lab.data.augment import PAD
from regrow.lab.data.cache import Check, cache_root, obtain, what_is_wrong
from regrow.lab.data.dataset import Augmentation, Dataset, Labelled, Splits, place
from regrow.lab.data.named import NamedData
from regrow.lab.data.sources import Progress, Source

if TYPE_CHECKING:
    from regrow.lab.config import Config
    from regrow.lab.data.feed import Data

_USUALLY_HELD_OUT = 0.1


@dataclass(frozen=True)
class Recipe:
    """All there is to know about one data set; digests are SHA-256, of the unpacked files.

    `test_files`: those that nothing is read from where a part of the training set is held out. `from_paths`: how to
    make the files of what a user has, if that is another form of them.
    """

    digests: Mapping[str, Check]
    sources: tuple[Source, ...]
    read_train: Callable[[Path], Labelled]
    read_test: Callable[[Path], Labelled]
    test_files: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = "none"
    pad: int = PAD
    image_shape: tuple[int, ...] = (1, 28, 28)
    num_classes: int = 10
    from_paths: Callable[[Sequence[Path]], Source] | None = None


@dataclass(frozen=True, kw_only=True)
class Fetched(NamedData):
    """A data set that a recipe describes.

    `held_out`: a share of the training set, chosen by the run's seed, that a run is tested on and not trained on; its
    test is not read then.
    """

    recipe: ClassVar[Recipe]
    can_be_fetched: ClassVar[bool] = True

    held_out: float = 0.0

    def check(self) -> None:
        self.check_number("held_out", below=1)

    @property
    def inputs(self) -> Recipe:
        return self.recipe

    @property
    def is_for_searching(self) -> bool:
        return self.held_out > 0

    def for_searching(self) -> Self:
        return replace(self, held_out=self.held_out or _USUALLY_HELD_OUT)

    def for_run(self, data: Any, config: "Config") -> "Data":
        seen: Dataset = data.holding_out(self.held_out, config.seed) if self.held_out else data
        return seen

    def fetch(
        self, root: Path | str | None = None, progress: Progress | None = None, paths: Sequence[Path] = ()
    ) -> Path:
        recipe, otherwise = self.recipe, None
        if recipe.from_paths is not None:
            otherwise = f"say where you have it: `regrow data {self.name} --from PATH`"
        elif paths:
            raise ValueError(f"{self.name} is not made of files of yours; leave --from out, and it is fetched")
        sources = [recipe.from_paths(paths)] if recipe.from_paths and paths else recipe.sources
        return obtain(self.name, recipe.digests, sources, root, progress, otherwise)

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> Dataset:
        recipe, folder = self.recipe, self._folder(root, progress)
        images, labels = recipe.read_train(folder)
        test = (images[:0], labels[:0]) if self.held_out else recipe.read_test(folder)
        return place(
            Splits(images, labels, *test),
            name=self.name,
            num_classes=recipe.num_classes,
            mean=recipe.mean,
            std=recipe.std,
            augmentation=recipe.augmentation,
            pad=recipe.pad,
            device=device,
        )

    def _folder(self, root: Path | str | None, progress: Progress | None) -> Path:
        """Where the files are that will be read; those of the test may be anything where they are not."""
        digests, folder = self.recipe.digests, cache_root(root) / self.name
        trained_on = {name: digest for name, digest in digests.items() if name not in self.recipe.test_files}
        if self.held_out and not what_is_wrong(folder, trained_on):
            return folder
        return self.fetch(root, progress)
