"""A smaller copy of a folder of pictures has the same pictures, in the same order and of the same shapes."""

from pathlib import Path

import pytest
from command_line import regrow

from regrow.lab import data

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    home = tmp_path / "large"
    for part in ("train", "val"):
        for name, colour in (("apple", (200, 30, 30)), ("lime", (30, 200, 30))):
            (home / part / name).mkdir(parents=True)
            for file, shape in (("b.JPEG", (120, 80)), ("c.png", (60, 90)), ("a.jpg", (30, 20))):
                image.new("RGB", shape, colour).save(home / part / name / file)
            (home / part / name / "notes.txt").write_text("not a picture")
    return home


def test_shorter_sides_shrink_and_nothing_grows(photographs: Path, tmp_path: Path):
    assert regrow(f"data prepare {photographs} {tmp_path / 'small'} --size 40")[0] == 0
    folder = data.open_folder(tmp_path / "small")
    assert [path.name for path in folder.train_files] == 2 * ["a.jpg", "b.JPEG", "c.png.jpg"]
    assert folder.train_labels == data.open_folder(photographs).train_labels
    shapes = []
    for path in folder.train_files[:3]:
        with image.open(path) as picture:
            assert picture.format == "JPEG"
            assert all(abs(a - b) < 8 for a, b in zip(picture.getpixel((5, 5)), (200, 30, 30), strict=True))
            shapes.append(picture.size)
    assert shapes == [(30, 20), (60, 40), (40, 60)]


def test_what_was_copied_is_not_copied_again(photographs: Path, tmp_path: Path):
    done = tmp_path / "small" / "train" / "apple" / "b.JPEG"
    done.parent.mkdir(parents=True)
    done.write_bytes(b"there already")
    assert regrow(f"data prepare {photographs} {tmp_path / 'small'}")[0] == 0
    assert done.read_bytes() == b"there already"


def test_what_cannot_be_copied_is_refused(photographs: Path, tmp_path: Path):
    code, told = regrow(f"data prepare {photographs} {photographs}")
    assert (code, "name another one to copy it to" in told) == (1, True)
    assert "from which folder to which" in regrow("data prepare")[1]
    assert "there is no folder" in regrow(f"data prepare {tmp_path / 'none'} {tmp_path / 'small'}")[1]
