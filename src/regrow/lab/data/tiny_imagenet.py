"""Photographs of 64 x 64 in 200 classes, a part of ImageNet (Le & Yang, 2015)."""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from regrow.files.checksum import check_metadata, check_tensors, sealed
from regrow.lab.config.component import component
from regrow.lab.data.archives import files_in
from regrow.lab.data.dataset import Labelled
from regrow.lab.data.pictures import read_picture
from regrow.lab.data.recipe import Fetched, Recipe
from regrow.lab.data.sources import Progress, Source, download

TRAIN, TEST = "train.safetensors", "val.safetensors"
_ANNOTATIONS = "val/val_annotations.txt"
_READ = re.compile(r"(?:^|/)(train/[^/]+/images/[^/]+\.JPEG|val/images/[^/]+\.JPEG|val/val_annotations\.txt)$")
_SIZE = 64


def digest_of(files: Mapping[str, bytes]) -> str:
    """One for all files: SHA-256 over each name and the SHA-256 of what is in it, in the order of names."""
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    return whole.hexdigest()


def decode(paths: Sequence[Path], folder: Path, progress: Progress, *, digest: str) -> None:
    """Pictures out of folders or archives, all of which together hold the data set, as tensors in two files."""
    files: dict[str, bytes] = {}
    num_bytes = 0
    for path in paths:
        for name, content in files_in(path, _READ):
            files[name] = content
            num_bytes += len(content)
            progress("reading pictures", num_bytes, None)
    if (found := digest_of(files)) != digest:
        raise OSError(
            f"{len(files):,} files of Tiny-ImageNet's layout, whose digest is {found[:8]} and not {digest[:8]}"
        )
    names = [line.split("\t")[:2] for line in files[_ANNOTATIONS].decode().splitlines()]
    train = {name: name.split("/")[1] for name in sorted(files) if name.startswith("train/")}
    test = {f"val/images/{name}": label for name, label in names}
    classes = {name: number for number, name in enumerate(sorted(set(train.values())))}
    for target, part in ((TEST, test), (TRAIN, train)):
        images = torch.empty(len(part), 3, _SIZE, _SIZE, dtype=torch.uint8)
        for number, name in enumerate(part):
            picture = np.array(read_picture(io.BytesIO(files.pop(name)), name), dtype=np.uint8)
            images[number] = torch.from_numpy(picture).permute(2, 0, 1)
            progress(f"decoding {target}", (number + 1) * images[0].nbytes, images.nbytes)
        labels = torch.tensor([classes[label] for label in part.values()])
        _write(folder / target, {"images": images, "labels": labels}, digest)


def _write(path: Path, tensors: dict[str, Tensor], digest: str) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, sealed({"pictures": digest}, tensors))
    path.chmod(0o644)  # it is its owner's alone otherwise, and caches may be for several


def is_whole(path: Path, *, digest: str) -> bool:
    """Whether a file is as it was written, from those pictures; decoders differ, so its own digest is not known."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            check_metadata(metadata)
            check_tensors(metadata, {name: file.get_tensor(name) for name in ("images", "labels")})
    except (SafetensorError, ValueError, OSError):
        return False
    return bool(metadata["pictures"] == digest)


def _read(name: str, folder: Path) -> Labelled:
    from safetensors.torch import load_file

    tensors = load_file(folder / name)
    return tensors["images"], tensors["labels"]


def from_paths(paths: Sequence[Path], *, digest: str) -> Source:
    """What a user has, a folder or archives."""

    def get(folder: Path, progress: Progress) -> None:
        decode(paths, folder, progress, digest=digest)

    return Source(", ".join(map(str, paths)), get)


def _web(url: str, *, digest: str) -> Source:
    def get(folder: Path, progress: Progress) -> None:
        archive = folder / "archive.zip"
        download(url, archive, progress)
        decode([archive], folder, progress, digest=digest)

    return Source(urlsplit(url).netloc, get)


def recipe_for(digest: str, url: str, num_classes: int) -> Recipe:
    """Of pictures in Tiny-ImageNet's layout, known by their digest."""
    return Recipe(
        digests=dict.fromkeys((TRAIN, TEST), partial(is_whole, digest=digest)),
        sources=(_web(url, digest=digest),),
        read_train=partial(_read, TRAIN),
        read_test=partial(_read, TEST),
        test_files=(TEST,),
        mean=(122.46, 114.26, 101.36),
        std=(70.49, 68.56, 71.81),
        augmentation="crop_flip",
        pad=8,
        image_shape=(3, _SIZE, _SIZE),
        num_classes=num_classes,
        from_paths=partial(from_paths, digest=digest),
    )


@component
class TinyImageNet(Fetched):
    """100,000 photographs of 64 x 64 to train on, 10,000 to test, in 200 classes."""

    name: ClassVar[str] = "tiny_imagenet"
    title: ClassVar[str] = "Tiny-ImageNet"
    recipe: ClassVar[Recipe] = recipe_for(
        "218d17b300aa824aa5f6253356c7098b0ad070983be7b6866fa57eab549cdae6",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        num_classes=200,
    )
