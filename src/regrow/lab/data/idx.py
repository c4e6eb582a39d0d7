"""The IDX files of MNIST and its relatives."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regrow.lab.data.dataset import Labelled

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TEST_FILES = FILES[2:]
_UNSIGNED_BYTES = 8


def read_idx(path: Path) -> Tensor:
    """The array in an IDX file of bytes: two zeros, type, number of dimensions, the dimensions, the values."""
    content = path.read_bytes()
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
        raise ValueError(f"{path} is not an IDX file of bytes; delete it and fetch the data set again")
    num_dims = content[3]
    start = 4 + 4 * num_dims
    shape = struct.unpack(f">{num_dims}I", content[4:start]) if len(content) >= start else (-1,)
    if len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is cut short or too long for its own header; delete it and fetch the data set again")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def read_train(folder: Path) -> Labelled:
    """Training images, with a channel dimension, and labels."""
    images, labels = (read_idx(folder / name) for name in FILES[:2])
    return images.unsqueeze(1), labels.long()


def read_test(folder: Path) -> Labelled:
    """The same of the test."""
    images, labels = (read_idx(folder / name) for name in TEST_FILES)
    return images.unsqueeze(1), labels.long()
