"""The cache holds whole, checked files or nothing, whatever happens to a download."""

import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regrow.lab import data
from regrow.lab.data.cache import FetchError, cache_root, obtain
from regrow.lab.data.sources import Progress, Source

CONTENT = {"a": b"first file", "b": b"second file"}
DIGESTS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def gives(content: dict[str, bytes], name: str = "good") -> Source:
    def get(folder: Path, progress: Progress) -> None:
        for file, value in content.items():
            (folder / file).write_bytes(value)
        (folder / "left over").write_bytes(b"of the download")

    return Source(name, get)


def fails(message: str, name: str = "bad") -> Source:
    def get(folder: Path, progress: Progress) -> None:
        (folder / "a").write_bytes(CONTENT["a"][:4])
        raise OSError(message)

    return Source(name, get)


def never(name: str = "never") -> Source:
    def get(folder: Path, progress: Progress) -> None:
        raise AssertionError("this source should not have been asked")

    return Source(name, get)


def kept(root: Path) -> dict[str, bytes]:
    """All files under the cache but its lock."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


WHOLE = {f"toy/{name}": content for name, content in CONTENT.items()}


def test_fetched_files_are_kept_and_nothing_else(tmp_path: Path) -> None:
    folder = obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    assert folder == tmp_path / "toy"
    assert kept(tmp_path) == WHOLE
    assert sorted(path.name for path in tmp_path.iterdir()) == [".toy.lock", "toy"]


def test_the_cache_comes_first(tmp_path: Path) -> None:
    obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    obtain("toy", DIGESTS, [never()], tmp_path)


def test_files_put_there_by_hand_are_used(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    for name, content in CONTENT.items():
        (tmp_path / "toy" / name).write_bytes(content)
    obtain("toy", DIGESTS, [never()], tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        fails("the line went dead"),
        gives({"a": CONTENT["a"], "b": CONTENT["b"][:-1]}),  # truncated
        gives({"a": CONTENT["a"], "b": b"SECOND file"}),  # corrupted
        gives({"a": CONTENT["a"]}),  # half
        gives({}),
    ],
)
def test_a_broken_source_is_passed_over(tmp_path: Path, broken: Source) -> None:
    obtain("toy", DIGESTS, [broken, gives(CONTENT), never()], tmp_path)
    assert kept(tmp_path) == WHOLE


def test_a_broken_download_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(FetchError):
        obtain("toy", DIGESTS, [fails("x"), gives({"a": b"wrong", "b": CONTENT["b"]})], tmp_path)
    assert kept(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [".toy.lock"]


def test_one_sentence_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    sources = [fails("no route to host", "home.example"), gives({"a": b"?", "b": b"?"}, "`npm pack toy`")]
    with pytest.raises(FetchError) as caught:
        obtain("toy", DIGESTS, sources, tmp_path)
    assert str(caught.value) == (
        f"could not get toy: tried the cache {tmp_path}/toy (nothing there) and home.example (no route to host) "
        "and `npm pack toy` (a is damaged as it arrived); go online and run `regrow data toy`, "
        f"or put a, b into {tmp_path}/toy yourself"
    )


@pytest.mark.parametrize("damage", [b"", b"first", b"First file", None])
def test_a_damaged_cache_is_repaired(tmp_path: Path, damage: bytes | None) -> None:
    folder = obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    (folder / "a").unlink() if damage is None else (folder / "a").write_bytes(damage)
    obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    assert kept(tmp_path) == WHOLE


def test_a_damaged_cache_is_not_used_offline(tmp_path: Path) -> None:
    folder = obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    (folder / "a").write_bytes(b"damaged")
    with pytest.raises(FetchError, match="a is damaged"):
        obtain("toy", DIGESTS, [fails("offline")], tmp_path)


def test_an_interrupted_fetch_cleans_up(tmp_path: Path) -> None:
    def get(folder: Path, progress: Progress) -> None:
        (folder / "a").write_bytes(b"fir")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("toy", DIGESTS, [Source("slow", get)], tmp_path)
    assert kept(tmp_path) == {}


DYING = """
import os, signal, sys
from regrow.lab.data.cache import obtain
from regrow.lab.data.sources import Source

def get(folder, progress):
    (folder / "a").write_bytes(b"fir")
    os.kill(os.getpid(), signal.SIGKILL)

obtain("toy", {"a": "0", "b": "0"}, [Source("dying", get)], sys.argv[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_fetch_is_swept_away_by_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False, env=environment)
    assert done.returncode == -9
    assert "toy" not in {path.name for path in tmp_path.iterdir()}
    assert len(kept(tmp_path)) == 1  # the half file, in a hidden folder
    obtain("toy", DIGESTS, [gives(CONTENT)], tmp_path)
    assert kept(tmp_path) == WHOLE


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there, so several may fetch")
def test_of_several_at_once_one_fetches_and_the_others_wait(tmp_path: Path) -> None:
    calls, waiting, everybody_waits = [], [], threading.Event()
    num_others = 5

    def get(folder: Path, progress: Progress) -> None:
        calls.append(folder)
        assert everybody_waits.wait(30)
        gives(CONTENT).get(folder, progress)

    def report(what: str, done: int, total: int | None) -> None:
        waiting.append(what)
        if len(waiting) == num_others:
            everybody_waits.set()

    def ask(_: int) -> Path:
        return obtain("toy", DIGESTS, [Source("slow", get)], tmp_path, report)

    with ThreadPoolExecutor(1 + num_others) as pool:
        folders = set(pool.map(ask, range(1 + num_others)))
    assert folders == {tmp_path / "toy"}
    assert len(calls) == 1
    assert waiting == ["waiting for another download of toy"] * num_others


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="set REGROW_DATA"):
        obtain("toy", DIGESTS, [never()], tmp_path / "file")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    assert cache_root() == tmp_path
    assert cache_root("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("REGROW_DATA")
    assert cache_root() == Path.home() / ".cache" / "regrow"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-10", "did you mean 'cifar10'"),
        ("MNIST", "did you mean 'mnist'"),
        (
            "qqq",
            "there are: cifar10, enwik8, fashion_mnist, folder, imagenet, mnist, synthetic",
        ),
        ("synthetic", "needs no fetching"),
        ("imagenet", "--data folder:PATH"),
    ],
)
def test_names_that_cannot_be_fetched(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.fetch(name)


@pytest.mark.skipif(os.environ.get("REGROW_TEST_NETWORK") != "1", reason="set REGROW_TEST_NETWORK=1 to download")
def test_mnist_arrives_whole(tmp_path: Path) -> None:
    mnist = data.load("mnist", device="cpu", root=tmp_path)
    assert (mnist.num_train, mnist.num_test, mnist.image_shape) == (60_000, 10_000, (1, 28, 28))
    assert mnist.train_images.float().mean().item() == pytest.approx(mnist.mean.item(), rel=1e-3)
