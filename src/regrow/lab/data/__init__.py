"""Data sets by name, one file each, on the device; fetched and checked when they are not there yet."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from regrow.lab.config.component import components, read_component
from regrow.lab.data.augment import crop_and_flip, draw_crops
from regrow.lab.data.batches import epoch_order, whole_batches
from regrow.lab.data.cache import FetchError, cache_root
from regrow.lab.data.dataset import Dataset, normalize
from regrow.lab.data.feed import Data
from regrow.lab.data.folder import ImageFolder, open_folder
from regrow.lab.data.named import NamedData
from regrow.lab.data.on_device import OnDevice
from regrow.lab.data.score import ACCURACY, BITS_PER_BYTE, Score
from regrow.lab.data.sources import Progress
from regrow.lab.data.synthetic import synthesize
from regrow.lab.data.text import Text

__all__ = [
    "ACCURACY",
    "BITS_PER_BYTE",
    "Data",
    "Dataset",
    "FetchError",
    "ImageFolder",
    "NamedData",
    "OnDevice",
    "Progress",
    "Score",
    "Text",
    "cache_root",
    "crop_and_flip",
    "draw_crops",
    "epoch_order",
    "fetch",
    "fetched",
    "load",
    "normalize",
    "open_folder",
    "read_data",
    "synthesize",
    "whole_batches",
]


def read_data(given: str | Mapping[str, Any] | NamedData) -> NamedData:
    """A data set by its name, by a short form such as "folder:PATH", or by a table with a name and fields."""
    data: NamedData = given if isinstance(given, NamedData) else read_component("data", given)
    return data


def fetched() -> dict[str, type[NamedData]]:
    """The data sets that can be fetched."""
    found = {name: cls for name, cls in components("data").items() if issubclass(cls, NamedData)}
    return {name: cls for name, cls in found.items() if cls.can_be_fetched}


def load(
    given: str | NamedData,
    *,
    device: torch.device | str,
    root: Path | str | None = None,
    progress: Progress | None = None,
) -> Data:
    """A data set to train on, fetched first if the cache does not have it."""
    return read_data(given).open(device, root, progress)


def fetch(
    given: str | NamedData,
    root: Path | str | None = None,
    progress: Progress | None = None,
    paths: Sequence[Path] = (),
) -> Path:
    """The folder with a data set's checked files: from the cache, its home on the web, a registry, or `paths`."""
    return read_data(given).fetch(root, progress, paths)


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
