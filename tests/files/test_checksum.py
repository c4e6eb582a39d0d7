"""What a disk or a wire does to a file is found: whatever bit it is, the file is refused."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

import regrow
from opened_files import change_header
from regrow.files.checksum import check_metadata, check_tensors, sealed
from regrow.files.format import read
from tests.fixtures.format_2.write import make_mixed

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.DSR(sparsity=0.8))
    regrow.save(path, model, sparse)
    return path


def length_of_header(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def is_refused(read: Callable[[Path], object], path: Path) -> bool:
    try:
        read(path)
    except ValueError:
        return True
    return False


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bits_of_the_tensors_are_refused(path: Path, tmp_path: Path):
    content, damaged = path.read_bytes(), tmp_path / "damaged.safetensors"
    bits = range(8 * length_of_header(content), 8 * len(content))
    for bit in random.Random(0).sample(bits, 300):
        damaged.write_bytes(flipped(content, bit))
        assert is_refused(regrow.load_tensors, damaged), bit


def test_flipped_bits_of_the_header_are_refused_and_also_by_describe(path: Path, tmp_path: Path):
    content, damaged = path.read_bytes(), tmp_path / "damaged.safetensors"
    told = regrow.describe(path)
    start = content.index(b'"checksum":"') + len('"checksum":"00000000-')
    of_tensors = range(8 * start, 8 * (start + 8))
    bits = range(64, 8 * length_of_header(content))
    for bit in [*range(64), *random.Random(0).sample(bits, 300)]:
        damaged.write_bytes(flipped(content, bit))
        assert is_refused(regrow.load_tensors, damaged), bit
        if bit not in of_tensors:  # which `describe` does not read
            assert is_refused(regrow.describe, damaged) or regrow.describe(damaged) == told, bit


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_bytes_changed_are_refused(path: Path, tmp_path_factory, data):
    content = bytearray(path.read_bytes())
    header = length_of_header(content)
    expected = read(path)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, header - 1) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    damaged = tmp_path_factory.mktemp("files") / "m.safetensors"
    damaged.write_bytes(content)
    if not is_refused(read, damaged):  # the same bytes, or other blanks behind the header
        found = read(damaged)
        assert found.made_by == expected.made_by
        assert found.state.keys() == expected.state.keys()
        assert all(torch.equal(tensor, expected.state[name]) for name, tensor in found.state.items())


def test_a_checksum_that_is_gone_is_missed(path: Path, tmp_path: Path):
    other = tmp_path / "m.safetensors"
    other.write_bytes(path.read_bytes().replace(b'"checksum"', b'"checksun"'))
    assert is_refused(regrow.describe, other)
    other.write_bytes(path.read_bytes().replace(b'"regrow":"4"', b'"regrow":"2"'))
    assert is_refused(regrow.describe, other)


@pytest.mark.parametrize(("format", "is_sealed"), [("2", False), ("3", True)])
def test_files_of_formats_before_load_for_ever(format: str, is_sealed: bool, tmp_path: Path):
    path = FIXTURES / f"format_{format}" / "mixed.safetensors"
    with safe_open(path, framework="pt") as file:
        assert (file.metadata()["regrow"], "checksum" in file.metadata()) == (format, is_sealed)
    content = torch.load(path.with_suffix(".pt"), weights_only=True)
    regrow.export(path, tmp_path / "now.safetensors", "sparse")
    for written in (path, tmp_path / "now.safetensors"):
        model = make_mixed()
        masks = regrow.load(written, model)
        for found, expected in ((masks, content["masks"]), (dict(model.state_dict()), content["model"])):
            assert found.keys() == expected.keys()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert regrow.describe(path).layers == regrow.describe(tmp_path / "now.safetensors").layers


def test_a_newer_format_says_what_to_do(path: Path, tmp_path: Path):
    newer = tmp_path / "m.safetensors"
    newer.write_bytes(path.read_bytes())
    change_header(newer, lambda header: header["__metadata__"].update(regrow="5"))
    with pytest.raises(ValueError, match="its format is 5 and this version of regrow reads 2, 3 and 4"):
        regrow.describe(newer)


SOME = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3), "none": torch.zeros(0, 4)}
CHANGES = {
    "another number": {"a": torch.tensor([1.0, 2.5])},
    "another sign": {"a": torch.tensor([-1.0, 2.0])},
    "another dtype": {"b": torch.tensor(3).view(torch.float64)},
    "another shape": {"none": torch.zeros(4, 0)},
    "one more": {"c": torch.zeros(0)},
    "another order": {"a": torch.tensor([2.0, 1.0])},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checksum_is_of_names_dtypes_shapes_and_bits(name: str):
    metadata = sealed({"regrow": "3"}, SOME)
    check_metadata(metadata)
    check_tensors(metadata, dict(reversed(SOME.items())))
    with pytest.raises(ValueError, match="its tensors do not match the checksum"):
        check_tensors(metadata, SOME | CHANGES[name])
