"""Pictures in class folders under train/ and val/, as ImageNet comes: too large for the device, decoded by threads."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from regrow.lab.config.component import Settings, component
from regrow.lab.data.batches import check_batch_size, epoch_order, whole_batches
from regrow.lab.data.cache import cache_root
from regrow.lab.data.dataset import normalize, per_channel
from regrow.lab.data.named import NamedData
from regrow.lab.data.pictures import centre_crop, random_crop
from regrow.lab.data.sources import Progress

MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
_SUFFIXES = {".jpeg", ".jpg", ".png"}
_BATCHES_AHEAD = 2


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Files and labels of a data set on disk; classes are numbered in the order of their folders' names."""

    root: Path
    classes: tuple[str, ...]
    train_files: tuple[Path, ...]
    train_labels: tuple[int, ...]
    test_files: tuple[Path, ...]
    test_labels: tuple[int, ...]
    image_size: int = 224

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
        parts = [batch[rank::num_ranks].tolist() for batch in whole_batches(order, batch_size)[first:]]

        def decode(index: int) -> Tensor:
            return random_crop(self.train_files[index], self.image_size, epoch=epoch, seed=seed, index=index)

        return _decode_ahead(parts, decode, self.train_labels, num_workers, device)

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
        parts = [batch[rank::num_ranks].tolist() for batch in batches]

        def decode(index: int) -> Tensor:
            return centre_crop(self.test_files[index], self.image_size)

        return _decode_ahead(parts, decode, self.test_labels, num_workers, device)


def open_folder(root: Path | str | None = None, *, image_size: int = 224) -> ImageFolder:
    """Find the pictures under train/CLASS/ and val/CLASS/; by default in the cache, under imagenet."""
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
    return ImageFolder(home, classes, *train, *test, image_size=image_size)


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


def _decode_ahead(
    parts: list[list[int]],
    decode: Callable[[int], Tensor],
    labels: tuple[int, ...],
    num_workers: int,
    device: torch.device | str,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in order, while threads already decode the next ones."""
    mean, std = per_channel(MEAN, device), per_channel(STD, device)
    pin = torch.device(device).type == "cuda"
    pool = ThreadPoolExecutor(num_workers)
    ahead: deque[tuple[list[Future[Tensor]], Tensor]] = deque()
    waiting = iter(parts)
    try:
        while True:
            while len(ahead) <= _BATCHES_AHEAD and (part := next(waiting, None)) is not None:
                futures = [pool.submit(decode, index) for index in part]
                ahead.append((futures, torch.tensor([labels[index] for index in part])))
            if not ahead:
                return
            futures, batch_labels = ahead.popleft()
            images = torch.stack([future.result() for future in futures])
            if pin:
                images, batch_labels = images.pin_memory(), batch_labels.pin_memory()
            images = images.to(device, non_blocking=True)
            yield normalize(images, mean, std), batch_labels.to(device, non_blocking=True)
    finally:
        pool.shutdown(cancel_futures=True)  # also when the reader stops early


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
        return open_folder(self.path)


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
        return open_folder()
