"""A file is the old one or the new one: for threads, for readers, for whoever is killed or runs out of room."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow
from regrow.files.atomic import remove_leftovers, write_atomically, write_text


@contextmanager
def no_room_beyond(num_bytes: int) -> Iterator[None]:
    """As on a full disk, no file can grow beyond a size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_threads_may_save_to_one_path_while_others_read(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    wrong: list[object] = []
    over = threading.Event()

    def model_of(number: int) -> nn.Module:
        layer = nn.Linear(40, 40)
        for parameter in layer.parameters():
            parameter.data.fill_(number)
        return layer

    def save(number: int) -> None:
        model = model_of(number)
        try:
            for _ in range(20):
                regrow.save(path, model)
        except Exception as error:
            wrong.append(error)

    def read() -> None:
        while not over.is_set():
            try:
                state = regrow.load_tensors(path)
                if len({float(number) for tensor in state.values() for number in tensor.flatten()}) != 1:
                    wrong.append("a mixture")
            except Exception as error:
                wrong.append(error)

    save(1)
    writers = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    for thread in readers:
        thread.join()
    assert not wrong
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_keeps_its_permissions(mode: int, tmp_path: Path):
    path = tmp_path / "m.safetensors"
    regrow.save(path, nn.Linear(2, 2))
    path.chmod(mode)
    regrow.save(path, nn.Linear(3, 3))
    assert path.stat().st_mode & 0o777 == mode
    assert regrow.load_tensors(path)["weight"].shape == (3, 3)


def test_the_secret_is_not_open_to_all_while_it_is_written(tmp_path: Path):
    path = tmp_path / "secret"
    write_text(path, "old")
    path.chmod(0o600)
    modes = []
    write_atomically(path, lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777))
    assert modes == [0o600]


def test_a_new_file_is_as_open_as_any_other(tmp_path: Path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_what_it_points_at_is_written(is_there: bool, tmp_path: Path):
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    real.parent.mkdir()
    if is_there:
        real.write_text("old")
    link.symlink_to(Path("disk") / "real")
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert [path.name for path in real.parent.iterdir()] == ["real"]


def test_what_a_killed_writer_left_goes_when_it_is_old(tmp_path: Path):
    code = (
        "import os, signal, sys; from pathlib import Path; from regrow.files.atomic import write_atomically\n"
        "write_atomically(Path(sys.argv[1]), lambda file: os.kill(os.getpid(), signal.SIGKILL))"
    )
    path = tmp_path / "m"
    write_text(path, "old")
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    [left] = [other for other in tmp_path.iterdir() if other != path]
    write_text(path, "new")
    assert left.exists(), "it might still be written to"
    os.utime(left, (0, left.stat().st_mtime - 4000))
    (tmp_path / ".regrow.mine").write_text("no name of ours")
    write_text(path, "newer")
    assert sorted(other.name for other in tmp_path.iterdir()) == [".regrow.mine", "m"]


def test_where_nobody_else_writes_leftovers_go_at_once(tmp_path: Path):
    for name in (".regrow.0123456789abcdef", ".m.safetensors.123", ".notes"):
        (tmp_path / name).write_text("half")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".notes"]


def test_a_full_disk_is_told_in_a_sentence_and_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    regrow.save(path, nn.Linear(2, 2))
    before = path.read_bytes()
    with (
        no_room_beyond(5000),
        pytest.raises(OSError, match=r"File too large: .*m\.safetensors was not written and is as"),
    ):
        regrow.save(path, nn.Linear(200, 200))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("format", ["dense", "state_dict", "csr", "sparse"])
def test_no_room_for_an_export_is_told_in_every_format(format: str, tmp_path: Path):
    model = nn.Linear(200, 200)
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.5))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    out = tmp_path / "out"
    out.write_text("old")
    with no_room_beyond(5000), pytest.raises(OSError, match="out was not written and is as it was"):
        regrow.export(tmp_path / "m.safetensors", out, format)
    assert out.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.safetensors", "out"]
