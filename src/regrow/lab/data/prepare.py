"""A smaller copy of a folder of pictures, which takes less to decode than what cameras make."""

import io
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from regrow.files.atomic import write_bytes
from regrow.lab.data.decoding import cores_for_each
from regrow.lab.data.folder import open_folder
from regrow.lab.data.pictures import read_picture, shrink

SIZE = 256
_QUALITY = 90
_AT_ONCE = 64


def prepare(
    source: Path, target: Path, size: int = SIZE, tell: Callable[[int, int], object] = lambda done, total: None
) -> int:
    """Copy train/CLASS/ and val/CLASS/ with shorter sides of `size` at the most; how many pictures there are then.

    The copy keeps the order of the pictures, by which they are drawn. What is there already is left alone, so that
    whoever was interrupted goes on.
    """
    if size < 1:
        raise ValueError(f"--size is the shorter side in pixels, at least 1, got {size}")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the folder to be copied; name another one to copy it to")
    found = open_folder(source)
    todo = [*found.train_files, *found.test_files]
    with ProcessPoolExecutor(cores_for_each(), get_context("spawn")) as pool:
        one = partial(_copy, source=source, target=target, size=size)
        for done, _ in enumerate(pool.map(one, todo, chunksize=_AT_ONCE), 1):
            tell(done, len(todo))
    return len(todo)


def _copy(path: Path, source: Path, target: Path, size: int) -> None:
    to = target / path.relative_to(source)
    if to.suffix.lower() == ".png":
        to = to.with_name(f"{to.name}.jpg")
    if to.exists():
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    shrink(read_picture(path), size).save(content, "JPEG", quality=_QUALITY)
    write_bytes(to, content.getbuffer())
