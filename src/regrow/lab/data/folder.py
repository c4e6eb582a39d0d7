"""Pictures in class folders under train/ and val/, as ImageNet comes: too large for the device, decoded on the way."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from regrow.lab.config.component import Settings, component
from regrow.lab.data.batches import check_batch_size, epoch_order, whole_batches
from regrow.lab.data.cache import cache_root
from regrow.lab.data.dataset import normalize, per_channel
from regrow.lab.data.decoding import CutOf, Parts, by_processes, by_threads, cores_for_each
from regrow.lab.data.named import NamedData
from regrow.lab.data.pictures import CentreCut, RandomCut
from regrow.lab.data.sources import Progress

MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
_SUFFIXES = {".jpeg", ".jpg", ".png"}


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Files and labels of a data set on disk; classes are numbered in the order of their folders' names.

    They are decoded by so many processes, or by threads of this one if that is 0.
    """

    root: Path
    classes: tuple[str, ...]
    train_files: tuple[Path, ...]
    train_labels: tuple[int, ...]
    test_files: tuple[Path, ...]
    test_labels: tuple[int, ...]
    image_size: int = 224
    num_processes: int = 0

    @property
    def test_batch_size(self) -> int:
        """How many are tested at once."""
        return 1000

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return (3, self.image_size, self.image_size)

    @property
    def num_classes(self) -> int:
        """How many class folders there are."""
        return len(self.classes)

    @property
    def num_train(self) -> int:
        """How many pictures there are to train on."""
        return len(self.train_files)

    @property
    def num_test(self) -> int:
        """How many pictures there are to test on."""
        return len(self.test_files)

    def training_batches(
        self,
        epoch: int,
        seed: int,
        batch_size: int,
        *,
        device: torch.device | str,
        num_workers: int = 8,
        rank: int = 0,
        num_ranks: int = 1,
        first: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of randomly cropped, flipped and normalized images with labels; the same for the same numbers.

        `batch_size` is that of all ranks together; each decodes its own part only. `first` is the batch to begin with.
        """
        check_batch_size(batch_size, self.num_train, str(self.root))
        order = epoch_order(self.num_train, epoch=epoch, seed=seed)
        chosen = [batch[rank::num_ranks].tolist() for batch in whole_batches(order, batch_size)[first:]]
        files, size = self.train_files, self.image_size
        return self._batches(
            chosen, lambda i: RandomCut(files[i], size, epoch, seed, i), self.train_labels, num_workers, device
        )

    def evaluation_batches(
        self,
        batch_size: int,
        *,
        device: torch.device | str,
        num_workers: int = 8,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images, the centre of each, normalized, with labels; the last batch may be smaller."""
        batches = torch.split(torch.arange(self.num_test), batch_size)
        chosen = [batch[rank::num_ranks].tolist() for batch in batches]
        files, size = self.test_files, self.image_size
        return self._batches(chosen, lambda i: CentreCut(files[i], size), self.test_labels, num_workers, device)

    def _batches(
        self, parts: Parts, cut_of: CutOf, labels: Sequence[int], num_workers: int, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalized on the device, with their labels."""
        device = torch.device(device)
        mean, std = per_channel(MEAN, device), per_channel(STD, device)
        if self.num_processes:
            batches = by_processes(parts, cut_of, self.image_size, self.num_processes, device)
        else:
            batches = by_threads(parts, cut_of, self.image_size, num_workers)
        with closing(batches):  # also when the reader stops early
            for images, part in zip(batches, parts, strict=True):
                targets = torch.tensor([labels[index] for index in part], dtype=torch.int64)
                if device.type == "cuda":
                    images, targets = (each if each.is_cuda else each.pin_memory() for each in (images, targets))
                yield normalize(images.to(device, non_blocking=True), mean, std), targets.to(device, non_blocking=True)


def open_folder(
    root: Path | str | None = None, *, image_size: int = 224, device: torch.device | str = "cpu"
) -> ImageFolder:
    """Find the pictures under train/CLASS/ and val/CLASS/; by default in the cache, under imagenet.

    A GPU is fed by a process on every core, a CPU by threads: it has no core to spare.
    """
    home = Path(root) if root else cache_root() / "imagenet"
    for part in ("train", "val"):
        if not (home / part).is_dir():
            raise ValueError(
                f"there is no folder {home / part}; expected pictures in {home}/train/CLASS and {home}/val/CLASS"
            )
    classes = tuple(sorted(path.name for path in (home / "train").iterdir() if path.is_dir()))
    strangers = sorted({path.name for path in (home / "val").iterdir() if path.is_dir()} - set(classes))
    if strangers:
        raise ValueError(
            f"{home / 'val'} has classes that train has not: {', '.join(strangers[:3])}; sort it the same way"
        )
    train, test = (_find(home / part, classes) for part in ("train", "val"))
    num_processes = cores_for_each() if torch.device(device).type == "cuda" else 0
    return ImageFolder(home, classes, *train, *test, image_size=image_size, num_processes=num_processes)


def _find(folder: Path, classes: tuple[str, ...]) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in _SUFFIXES
    ]
    if not found:
        raise ValueError(f"no pictures (.jpg, .jpeg, .png) in the class folders of {folder}")
    files, labels = zip(*found, strict=True)
    return files, labels


@component
class Folder(NamedData):
    """Pictures of yours, in class folders under train/ and val/: "folder:PATH"."""

    name: ClassVar[str] = "folder"

    path: str

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        """The same folder from wherever it is named."""
        kind, colon, path = text.partition(":")
        if kind != cls.name:
            return None
        return {"path": str(Path(path).expanduser().resolve())} if colon and path else {}

    def said(self) -> str:
        return f"{self.name}:{self.path}"

    @property
    def title(self) -> str:  # type: ignore[override]
        return self.said()

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> ImageFolder:
        return open_folder(self.path, device=device)


@component
class ImageNet(NamedData):
    """Photographs in a thousand classes, in the cache under imagenet; they must be asked for at their home."""

    name: ClassVar[str] = "imagenet"
    title: ClassVar[str] = "ImageNet"

    def fetch(
        self, root: Path | str | None = None, progress: Progress | None = None, paths: Sequence[Path] = ()
    ) -> Path:
        raise ValueError(
            "imagenet must be asked for at its home; put its train/ and val/ into a folder and say --data folder:PATH"
        )

    def open(
        self, device: torch.device | str, root: Path | str | None = None, progress: Progress | None = None
    ) -> ImageFolder:
        return open_folder(device=device)
