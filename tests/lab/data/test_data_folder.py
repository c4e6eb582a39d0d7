"""Class folders of pictures give the same batches for the same numbers, whatever the threads do."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from regrow.lab import data
from regrow.lab.data.folder import MEAN, STD
from regrow.lab.data.pictures import CentreCut, Pixels, RandomCut, random_box

image = pytest.importorskip("PIL.Image")

COLOURS = {"apple": (200, 30, 30), "lime": (30, 200, 30), "plum": (90, 20, 160)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ImageNet: pictures of one colour per class, of different shapes."""
    home = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 4), ("val", 2)):
        for name, colour in COLOURS.items():
            folder = home / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                image.new("RGB", (40 + 10 * number, 50), colour).save(folder / f"{number}.JPEG", quality=95)
            (folder / "notes.txt").write_text("not a picture")
    image.new("L", (30, 30), 128).save(home / "train" / "plum" / "grey.png")
    return home


@pytest.fixture(scope="module")
def folder(root: Path) -> data.ImageFolder:
    return data.open_folder(root, image_size=24)


def test_a_folder_knows_its_classes_and_pictures(folder: data.ImageFolder) -> None:
    assert folder.classes == ("apple", "lime", "plum")
    assert (folder.num_classes, folder.num_train, folder.num_test) == (3, 13, 6)
    assert folder.train_labels == (0,) * 4 + (1,) * 4 + (2,) * 5


def test_pictures_come_with_their_labels(folder: data.ImageFolder) -> None:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    for images, labels in folder.evaluation_batches(4, device="cpu", num_workers=2):
        assert images.shape[1:] == (3, 24, 24)
        pixels = images.mean((2, 3)) * std + mean
        expected = torch.tensor(list(COLOURS.values()), dtype=torch.float32)[labels]
        assert (pixels - expected).abs().max() < 4


def test_evaluation_sees_all_and_training_drops_the_rest(folder: data.ImageFolder) -> None:
    evaluation = [labels for _, labels in folder.evaluation_batches(4, device="cpu", num_workers=2)]
    assert torch.cat(evaluation).tolist() == [0, 0, 1, 1, 2, 2]
    training = [labels for _, labels in folder.training_batches(0, 0, 5, device="cpu", num_workers=2)]
    assert [len(labels) for labels in training] == [5, 5]


def test_batches_do_not_depend_on_the_threads(folder: data.ImageFolder) -> None:
    one, many = (
        list(folder.training_batches(1, 7, 4, device="cpu", num_workers=num_workers)) for num_workers in (1, 6)
    )
    for (images, labels), (same_images, same_labels) in zip(one, many, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)


def test_processes_give_what_threads_give(folder: data.ImageFolder) -> None:
    """Also when the reader stops early, and when one of them cannot read its picture."""
    processes = replace(folder, num_processes=2)
    for one, other in (
        (folder.training_batches(1, 7, 2, device="cpu"), processes.training_batches(1, 7, 2, device="cpu")),
        (folder.evaluation_batches(4, device="cpu"), processes.evaluation_batches(4, device="cpu")),
    ):
        for (images, labels), (same_images, same_labels) in zip(one, other, strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)
    batches = processes.training_batches(0, 0, 2, device="cpu")
    next(batches)
    batches.close()
    missing = replace(processes, test_files=(folder.root / "gone.jpg", *folder.test_files[1:]))
    with pytest.raises(ValueError, match=r"gone\.jpg cannot be read as a picture"):
        next(missing.evaluation_batches(4, device="cpu"))
    assert not [path for path in Path("/proc/self/fd").iterdir() if "memfd:batch" in os.path.realpath(path)]


def test_when_one_is_killed_the_next_reader_has_others(folder: data.ImageFolder) -> None:
    processes = replace(folder, num_processes=2)
    batches = processes.training_batches(0, 0, 2, device="cpu")
    first = next(batches)
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(OSError, match="a process that decodes pictures was killed"):
        list(batches)
    again = next(processes.training_batches(0, 0, 2, device="cpu"))
    assert torch.equal(again[0], first[0])


def test_processes_end_with_the_one_that_was_killed(root: Path) -> None:
    program = f"""
from regrow.lab import data
from dataclasses import replace
if __name__ == "__main__":
    folder = replace(data.open_folder({str(root)!r}, image_size=24), num_processes=1)
    batches = folder.evaluation_batches(4, device="cpu")
    next(batches)
    import multiprocessing
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ranks_share_a_batch(folder: data.ImageFolder) -> None:
    whole = next(folder.training_batches(0, 0, 6, device="cpu", num_workers=2))
    for rank in (0, 1):
        part = next(folder.training_batches(0, 0, 6, device="cpu", num_workers=2, rank=rank, num_ranks=2))
        assert torch.equal(part[0], whole[0][rank::2])
        assert torch.equal(part[1], whole[1][rank::2])


def test_stopping_early_ends_the_threads(folder: data.ImageFolder) -> None:
    before = threading.active_count()
    batches = folder.training_batches(0, 0, 2, device="cpu", num_workers=3)
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before


def gradient(path: Path, width: int, height: int) -> None:
    """A picture whose red is the column and whose green is the row."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    image.fromarray(np.stack((columns, rows, 0 * rows), axis=-1).astype(np.uint8)).save(path)


def test_the_centre_is_cut_out_of_a_slightly_larger_picture(tmp_path: Path) -> None:
    gradient(tmp_path / "wide.png", 200, 64)
    cut = CentreCut(tmp_path / "wide.png", 56)()  # the shorter side is 64 already, as 256 is for 224
    assert cut.shape == (56, 56, 3)
    assert cut[0, :, 0].tolist() == list(range(72, 128))
    assert cut[:, 0, 1].tolist() == list(range(4, 60))


def test_a_random_crop_varies_with_epoch_seed_and_picture(tmp_path: Path) -> None:
    gradient(tmp_path / "picture.png", 120, 90)

    def cut(epoch: int, seed: int, index: int) -> Pixels:
        return RandomCut(tmp_path / "picture.png", 32, epoch, seed, index)()

    assert np.array_equal(cut(0, 0, 0), cut(0, 0, 0))
    assert all(not np.array_equal(cut(0, 0, 0), cut(*other)) for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    flipped = [bool(cut(epoch, 0, 0)[0, 0, 0] > cut(epoch, 0, 0)[0, -1, 0]) for epoch in range(200)]
    assert 0.35 < sum(flipped) / 200 < 0.65


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (1, 1), (1, 300), (1000, 3)])
def test_random_boxes_lie_inside_and_have_the_right_shape(size: tuple[int, int]) -> None:
    width, height = size
    random = Random(0)
    boxes = [random_box(width, height, random) for _ in range(300)]
    assert all(0 <= left < right <= width and 0 <= top < bottom <= height for left, top, right, bottom in boxes)
    if min(size) > 100:
        areas = [(right - left) * (bottom - top) / (width * height) for left, top, right, bottom in boxes]
        ratios = [(right - left) / (bottom - top) for left, top, right, bottom in boxes]
        assert min(areas) > 0.075
        assert max(areas) > 0.8
        assert all(0.73 < ratio < 1.36 for ratio in ratios)


def test_an_unreadable_picture_is_named(root: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "apple").mkdir(parents=True)
        whole = (root / "train" / "apple" / "0.JPEG").read_bytes()
        (tmp_path / part / "apple" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    broken = data.open_folder(tmp_path)
    with pytest.raises(ValueError, match=r"half\.jpg cannot be read as a picture"):
        next(broken.evaluation_batches(1, device="cpu", num_workers=1))


def test_a_folder_that_is_not_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="train/CLASS"):
        data.open_folder(tmp_path)
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="imagenet/train"):
        data.open_folder()
    (tmp_path / "train" / "apple").mkdir(parents=True)
    (tmp_path / "val" / "pear").mkdir(parents=True)
    with pytest.raises(ValueError, match="classes that train has not: pear"):
        data.open_folder(tmp_path)
    (tmp_path / "val" / "pear").rmdir()
    with pytest.raises(ValueError, match="no pictures"):
        data.open_folder(tmp_path)


def test_too_large_a_batch_is_refused(folder: data.ImageFolder) -> None:
    with pytest.raises(ValueError, match="between 1 and 13"):
        folder.training_batches(0, 0, 14, device="cpu")
