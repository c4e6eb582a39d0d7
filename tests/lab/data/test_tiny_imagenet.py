"""Tiny-ImageNet, as a miniature of the same layout: three classes, some pictures grey, in folders and in archives."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regrow.lab import data
from regrow.lab.cli.main import app
from regrow.lab.config.component import KINDS, component
from regrow.lab.data.cache import FetchError
from regrow.lab.data.recipe import Fetched, Recipe
from regrow.lab.data.tiny_imagenet import TEST, TRAIN, TinyImageNet, digest_of, recipe_for

COLOURS = {"n01": (200, 30, 30), "n02": (30, 200, 30), "n03": (128, 128, 128)}
OTHERS = {"words.txt": b"n01\tapple", "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0", "test/images/test_0.JPEG": b"none"}


def jpeg(colour: tuple[int, int, int]) -> bytes:
    content = io.BytesIO()
    grey = len(set(colour)) == 1
    Image.new("L" if grey else "RGB", (64, 64), colour[0] if grey else colour).save(content, "JPEG", quality=95)
    return content.getvalue()


def miniature() -> dict[str, bytes]:
    """Four pictures of each class to train on; two of each to test, whose classes a table tells."""
    files = {
        f"train/{name}/images/{name}_{number}.JPEG": jpeg(colour)
        for name, colour in COLOURS.items()
        for number in range(4)
    }
    classes = [*reversed(COLOURS)] * 2
    files |= {f"val/images/val_{number}.JPEG": jpeg(COLOURS[name]) for number, name in enumerate(classes)}
    table = "".join(f"val_{number}.JPEG\t{name}\t0\t0\t63\t63\n" for number, name in enumerate(classes))
    return {**files, "val/val_annotations.txt": table.encode()}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Its files, and the data set registered as mini_imagenet with an empty cache."""
    monkeypatch.setenv("REGROW_DATA", str(tmp_path / "cache"))
    made = miniature()

    class Mini(Fetched):
        """Made up."""

        name: ClassVar[str] = "mini_imagenet"
        title: ClassVar[str] = "a miniature"
        recipe: ClassVar[Recipe] = recipe_for(digest_of(made), "http://127.0.0.1:9/mini.zip", num_classes=3)

    component(Mini)
    yield made
    del KINDS["data"]["mini_imagenet"]


def as_folder(path: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        file = path / "tiny-imagenet-200" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return [path / "tiny-imagenet-200"]


def as_zip(path: Path, files: dict[str, bytes]) -> list[Path]:
    with zipfile.ZipFile(path / "all.zip", "w") as packed:
        for name, content in files.items():
            packed.writestr(f"tiny-imagenet-200/{name}", content)
    return [path / "all.zip"]


def as_tars(path: Path, files: dict[str, bytes]) -> list[Path]:
    """Two, which hold every other file."""
    paths = [path / "0.tar.gz", path / "1.tar.gz"]
    for half, target in enumerate(paths):
        with tarfile.open(target, "w:gz") as tar:
            for name in list(files)[half::2]:
                member = tarfile.TarInfo(name)
                member.size = len(files[name])
                tar.addfile(member, io.BytesIO(files[name]))
    return paths


def check_colours(images: torch.Tensor, labels: torch.Tensor) -> None:
    means = images.float().mean((2, 3))
    assert (means - torch.tensor([*COLOURS.values()]).float()[labels]).abs().max() < 4


@pytest.mark.parametrize("pack", [as_folder, as_zip, as_tars])
def test_pictures_come_with_their_labels_from_wherever_they_lie(files: dict[str, bytes], tmp_path: Path, pack):
    data.fetch("mini_imagenet", paths=pack(tmp_path, {**files, **OTHERS}))
    mini = data.load("mini_imagenet", device="cpu")
    assert isinstance(mini, data.Dataset)
    assert (mini.num_train, mini.num_test, mini.num_classes, mini.image_shape) == (12, 6, 3, (3, 64, 64))
    assert mini.train_images.dtype == torch.uint8
    assert mini.train_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert mini.test_labels.tolist() == [2, 1, 0, 2, 1, 0]
    check_colours(mini.train_images, mini.train_labels)
    check_colours(mini.test_images, mini.test_labels)
    assert int(mini.draws(0, 0)[:, :2].max()) > 8  # as padded by 8


def test_several_archives_are_named_after_one_another(files: dict[str, bytes], tmp_path: Path):
    words = ["data", "mini_imagenet", "--from", *map(str, as_tars(tmp_path, files))]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(tmp_path / "cache" / "mini_imagenet")]
    for path in (tmp_path / "cache" / "mini_imagenet").iterdir():
        assert path.stat().st_mode & 0o044 == 0o044  # a cache may be for several people


def test_pictures_that_are_not_those_are_refused(files: dict[str, bytes], tmp_path: Path):
    name = next(iter(files))
    with pytest.raises(FetchError, match=r"19 files of .* whose digest is .* --from PATH"):
        data.fetch("mini_imagenet", paths=as_zip(tmp_path, {**files, name: jpeg((1, 2, 3))}))
    with pytest.raises(FetchError, match="neither a folder nor a tar nor a zip"):
        data.fetch("mini_imagenet", paths=[Path(__file__)])
    assert not (tmp_path / "cache" / "mini_imagenet").exists()


def test_what_was_decoded_is_checked_and_made_again_where_it_is_damaged(files: dict[str, bytes], tmp_path: Path):
    folder = data.fetch("mini_imagenet", paths=as_zip(tmp_path, files))
    content = bytearray((folder / TRAIN).read_bytes())
    content[-1] ^= 1
    (folder / TRAIN).write_bytes(content)
    with pytest.raises(FetchError, match=f"{TRAIN} is damaged"):
        data.load("mini_imagenet", device="cpu")
    data.fetch("mini_imagenet", paths=as_zip(tmp_path, files))
    assert data.load("mini_imagenet", device="cpu").num_train == 12


def test_with_a_part_held_out_the_test_is_not_read(files: dict[str, bytes], tmp_path: Path):
    folder = data.fetch("mini_imagenet", paths=as_zip(tmp_path, files))
    (folder / TEST).unlink()
    held = data.read_data({"name": "mini_imagenet", "held_out": 0.25})
    assert held.open("cpu").holding_out(0.25, 0).num_test == 3


def test_other_data_are_not_made_of_files_of_yours(tmp_path: Path):
    with pytest.raises(ValueError, match="leave --from out"):
        data.fetch("mnist", tmp_path, paths=[tmp_path])


def test_the_real_one_has_200_classes_of_64_pixels_in_colour():
    recipe = TinyImageNet.recipe
    assert (recipe.num_classes, recipe.image_shape, recipe.pad) == (200, (3, 64, 64), 8)
