"""The files of MNIST and CIFAR-10 are read as they are documented."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_idx import idx_bytes

from regrow.lab.data import cifar, fetched, idx
from regrow.lab.data.dataset import Splits


def test_an_idx_file_is_header_then_values(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255]))
    assert idx.read_idx(path).tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"<html>no such page</html>", "not an IDX file"),
        (bytes([0, 0, 8, 2, 0, 0]), "cut short"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2]), "cut short"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2]), "too long"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        idx.read_idx(tmp_path / "file")


def test_idx_splits_have_a_channel_and_long_labels(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in idx.FILES:
        count = 7 if name.startswith("train") else 3
        shape = (count, 28, 28) if "images" in name else (count,)
        (tmp_path / name).write_bytes(idx_bytes(random.integers(0, 10, shape)))
    splits = (*idx.read_train(tmp_path), *idx.read_test(tmp_path))
    assert [tuple(tensor.shape) for tensor in splits] == [(7, 1, 28, 28), (7,), (3, 1, 28, 28), (3,)]
    assert [tensor.dtype for tensor in splits] == [torch.uint8, torch.int64, torch.uint8, torch.int64]


def test_a_cifar_record_is_label_then_colour_planes(tmp_path: Path) -> None:
    red, green, blue = (bytes([value]) * 1024 for value in (10, 20, 30))
    (tmp_path / "file").write_bytes(b"\x07" + red + green + blue)
    images, labels = cifar.read_binary(tmp_path / "file")
    assert labels.tolist() == [7]
    assert images[0, :, 5, 9].tolist() == [10, 20, 30]


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_a_broken_cifar_file_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    with pytest.raises(ValueError, match="whole CIFAR-10 images"):
        cifar.read_binary(tmp_path / "file")


def test_pictures_become_the_binary_release(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    per_file = 4
    names = [Path(name).stem for name in (*cifar.TRAIN_FILES, cifar.TEST_FILE)]
    pixels = {name: random.integers(0, 256, (per_file, 32, 32, 3), dtype=np.uint8) for name in names}
    for name, images in pixels.items():
        image.fromarray(images.reshape(per_file, 1024, 3)).save(tmp_path / f"{name}.png")
    train_labels, test_labels = [number % 10 for number in range(5 * per_file)], [9, 8, 7, 6]
    (tmp_path / "train_lables.json").write_text(json.dumps(train_labels))
    (tmp_path / "test_lables.json").write_text(json.dumps(test_labels))

    cifar.rebuild_binary(tmp_path)

    splits = Splits(*cifar.read_train(tmp_path), *cifar.read_test(tmp_path))
    assert splits.train_labels.tolist() == train_labels
    assert splits.test_labels.tolist() == test_labels
    expected = torch.from_numpy(np.concatenate([pixels[name] for name in names])).permute(0, 3, 1, 2)
    assert torch.equal(torch.cat([splits.train_images, splits.test_images]), expected)
    assert (tmp_path / "data_batch_1.bin").stat().st_size == per_file * 3073


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_every_recipe_names_digests_for_the_files_it_reads(name: str) -> None:
    recipe = fetched()[name].recipe
    files = (*cifar.TRAIN_FILES, cifar.TEST_FILE) if name == "cifar10" else idx.FILES
    assert set(recipe.digests) == set(files)
    assert all(len(digest) == 64 for digest in recipe.digests.values())
    assert len(recipe.sources) >= 2


def test_optional_packages_are_imported_only_when_needed() -> None:
    program = (
        "import sys; import regrow.lab.data, regrow.lab.models; "
        "print(sorted({'PIL', 'matplotlib', 'torchvision'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
