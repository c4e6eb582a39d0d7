"""Damaged and hostile files are refused: by their headers alone wherever these lie, and before memory is taken."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from opened_files import Opened, change_header, opened
from regrow.files.format import write
from regrow.files.index import decode
from tests.fixtures.format_2.write import make_mixed

FIXTURES = Path(__file__).parent.parent / "fixtures"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(tmp_path / "m.safetensors")


def saved(path: Path) -> Path:
    """120 of 600 weights and 42 of 210."""
    torch.manual_seed(0)
    model = network()
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.8))
    regrow.save(path, model, sparse)
    return path


def refused(path: Path, message: str = "") -> None:
    """By every reader, and a model that should have been filled is as it was."""
    plain, packed = network(), network()
    regrow.attach(packed, torch.optim.SGD(packed.parameters(), lr=0.1), regrow.Static(sparsity=0.8), storage="packed")
    for model in (plain, packed):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(ValueError, match=rf"m\.safetensors.*{message}"):
            regrow.load(path, model)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match=rf"m\.safetensors.*{message}"):
        regrow.load_tensors(path)


def refused_unread(path: Path, message: str = "") -> None:
    """Also by `describe`, which reads no tensor."""
    refused(path, message)
    with pytest.raises(ValueError, match=rf"m\.safetensors.*{message}"):
        regrow.describe(path)


def test_the_index_that_is_lied_about_below(path: Path):
    with opened(path) as file:
        assert file.modules == {
            "0.": [0, [[30, 20], 120, 2, 57], [30]],
            "3.": [0, [[7, 30], 42, 2, 20], [7]],
            "1.": NORM,
        }
    regrow.load(path, network())


NORM = [1, [30], [30], [30], [30], []]
IN_MODULES = [
    # shapes of sparse tensors
    ("0.", [0, [[10**9, 10**9], 120, 2, 57], [30]]),
    ("0.", [0, [[2**40, 2**40], 120, 2, 57], [30]]),
    ("0.", [0, [[30, 20, 2**62, 0], 0, 2, 57], [30]]),
    ("0.", [0, [[30, 28], 120, 2, 57], [30]]),
    ("0.", [0, [[-30, -20], 120, 2, 57], [30]]),
    ("0.", [0, [[True, 600], 120, 2, 57], [30]]),
    ("0.", [0, [[30.0, 20], 120, 2, 57], [30]]),
    ("0.", [0, [[1] * 65, 1, 2, 57], [30]]),
    ("0.", [0, ["30x20", 120, 2, 57], [30]]),
    ("0.", [0, [None, 120, 2, 57], [30]]),
    # how many values they have
    *(("0.", [0, [[30, 20], active, 2, 57], [30]]) for active in (121, 601, 10**30, -1, True, 1.0, None, "120")),
    ("0.", [0, [30, 20], [30]]),
    ("0.", [0, [[30, 20]], [30]]),
    # the code of their positions
    *(
        ("0.", [0, [[30, 20], 120, parameter, 57], [30]])
        for parameter in (13, 10**18, 10**30, -1, True, 2.0, None, "2")
    ),
    *(("0.", [0, [[30, 20], 120, 2, length], [30]]) for length in (0, 31, 56, 58, 10**18, 10**30, -57, True, None)),
    ("0.", [0, [[30, 20], 120, 2], [30]]),
    ("0.", [0, [[30, 20], 120, 2, 57, 0], [30]]),
    ("0.", [0, [[30, 20], 120], [30]]),  # a mask, of which there are none
    # shapes of dense tensors
    *(
        ("0.", [0, [[30, 20], 120, 2, 57], shape])
        for shape in ([31], [29], [-30], [], [[30], 3], [[30], 3, 2, 57], 30, None, {}, [10**30])
    ),
    ("1.", [1, [30], [30], [30], [30], [0, 10**18, 10**18]]),
    # modules that are of no kind
    *(("1.", [kind, *NORM[1:]]) for kind in (2, -1, True, 0, None, "1", 10**30, [1])),
    *(("1.", row) for row in ([], NORM[:-1], [*NORM, []], {}, "", 1, None)),
    # tensors that are there twice, or have nothing in the file
    ("new.", NORM),
    ("new.", [0, [[0], 1, 0, 1], [0]]),
]


@pytest.mark.parametrize(("prefix", "row"), IN_MODULES)
def test_modules_that_lie(prefix: str, row: object, path: Path):
    with opened(path) as file:
        file.modules[prefix] = row
    refused_unread(path)


def put(key: str, text: str):
    return lambda file: file.metadata.update({key: text})


LIES = {
    "deep modules": put("modules", '{"a":' * 100_000),
    "deep kinds": put("kinds", "[" * 100_000),
    "deep aliases": put("aliases", "[" * 100_000 + "]" * 100_000),
    "long numbers": put("modules", '{"0.":[' + "9" * 10_000 + "]}"),
    "no json": put("modules", "{"),
    "a list of modules": put("modules", "[]"),
    "no modules": put("modules", "{}"),
    "a dict of kinds": put("kinds", "{}"),
    "no kinds": put("kinds", "[]"),
    "a module twice": lambda file: file.metadata.update(
        modules=json.dumps(file.modules).replace('"1.":', f'"1.": {json.dumps(NORM)}, "1.":')
    ),
    "a tensor twice": lambda file: (
        file.modules.update({"": [2, [0]]}),
        file.kinds.append({"0.bias": "dense:float32"}),
    ),
    "names too long": lambda file: (
        file.kinds.append({"a" * 10**6: "dense:float32"}),
        file.modules.update({f"{number}": [2, [0]] for number in range(101)}),
    ),
    "dense in the positions": lambda file: file.kinds[0].update(bias="positions"),
    "values of no float": lambda file: file.kinds[0].update(weight="values:int8"),
    "an entry without a name": lambda file: file.kinds[0].update(weight=["values:float32"]),
    "a kind that is a list": lambda file: file.kinds.append(["weight"]),
    "an entry too few": lambda file: file.entries.pop("buffers:int64"),
    "no positions": lambda file: file.entries.pop("positions"),
    "masks in their place": lambda file: file.entries.update(masks=file.entries.pop("positions")),
    "an entry too many": lambda file: file.entries.update({"dense:other": torch.zeros(3)}),
    "an entry that is empty": lambda file: file.entries.update({"dense:other": torch.zeros(0)}),
    "an entry with two axes": lambda file: file.entries.update(positions=file.entries["positions"][None]),
    "an entry too long": lambda file: file.entries.update(positions=torch.zeros(78, dtype=torch.uint8)),
    "signed positions": lambda file: file.entries.update(positions=file.entries["positions"].view(torch.int8)),
    "whole values": lambda file: file.entries.update({"values:float32": torch.zeros(162, dtype=torch.int64)}),
    "complex values": lambda file: file.entries.update({"values:float32": torch.zeros(162, dtype=torch.complex64)}),
    "tied to nothing": put("aliases", '{"a": "nothing"}'),
    "tied to a number": put("aliases", '{"a": 1}'),
    "tied to itself": put("aliases", '{"a": "a"}'),
    "tied in a row": put("aliases", '{"a": "0.bias", "b": "a"}'),
    "tied over another": put("aliases", '{"0.bias": "3.bias"}'),
    "another format": put("regrow", "99"),
}


@pytest.mark.parametrize("name", LIES)
def test_headers_that_lie(name: str, path: Path):
    with opened(path) as file:
        LIES[name](file)
    refused_unread(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("__metadata__"),
        lambda h: h["__metadata__"].pop("regrow"),
        lambda h: h["__metadata__"].pop("modules"),
        lambda h: h["__metadata__"].update(modules={}),
        lambda h: h["values:float32"].update(data_offsets=[0, 4]),
        lambda h: h["values:float32"].update(shape=[10**15]),
        lambda h: h["positions"].update(data_offsets=h["values:float32"]["data_offsets"]),
        lambda h: h.update({"values:other": h.pop("values:float32")}),
    ],
)
def test_headers_that_no_writer_of_safetensors_makes(change, path: Path):
    change_header(path, change)
    refused_unread(path)


def test_files_of_the_first_format_are_refused_with_what_to_do(path: Path):
    change_header(path, lambda h: h["__metadata__"].update(regrow="1"))
    refused_unread(path, "its format is 1 and this version of regrow reads 2, 3 and 4; save the model again")


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
def test_numbers_of_less_than_a_byte_are_refused(dtype: str, path: Path):
    with opened(path) as file:
        file.entries["dense:small"] = torch.zeros({"F4": 4, "F6_E2M3": 6}[dtype], dtype=torch.uint8)
        file.add("small.numbers", "dense:small", [8])
    change_header(path, lambda header: header["dense:small"].update(dtype=dtype, shape=[8]))
    refused_unread(path, "cannot have dtype")


def tell(cells: dict[str, list[object]]) -> Callable[[Opened], object]:
    """Other shapes, numbers of values and codes of sparse tensors, which could be true of a code as long as theirs."""

    def spoil(file: Opened) -> None:
        for prefix, cell in cells.items():
            file.modules[prefix][1] = cell

    return spoil


def turn(*bits: int) -> Callable[[Opened], object]:
    """Flip bits of the positions."""

    def spoil(file: Opened) -> None:
        for bit in bits:
            file.entries["positions"][bit // 8] ^= 1 << bit % 8

    return spoil


def exchange(file: Opened) -> None:
    """As many bytes of both tensors, but those of the second one first."""
    file.entries["positions"] = torch.cat([file.entries["positions"][57:], file.entries["positions"][:57]])


NO_CODES = {
    "more positions": tell({"0.": [[30, 21], 120, 2, 57]}),
    "fewer positions": tell({"0.": [[30, 19], 120, 2, 57]}),
    "values of another": tell({"0.": [[30, 20], 119, 2, 57], "3.": [[7, 30], 43, 2, 20]}),
    "bytes of another": tell({"0.": [[30, 20], 120, 2, 58], "3.": [[7, 30], 42, 2, 19]}),
    "another parameter": tell({"0.": [[30, 20], 120, 1, 57]}),
    "a remainder": turn(0),
    "behind the remainders": turn(8 * 30 + 3),  # 121 of 2 bits
    "a quotient": turn(8 * 31),
    "behind the quotients": turn(8 * 57 - 1),
    "exchanged": exchange,
    "zeros": lambda file: file.entries["positions"].zero_(),
    "ones": lambda file: file.entries["positions"].fill_(255),
}


@pytest.mark.parametrize("name", NO_CODES)
def test_positions_that_are_no_code(name: str, path: Path):
    with opened(path) as file:
        NO_CODES[name](file)
    refused(path, r"(the positions of [03]\.weight make no sense: their code is not of|0\.weight has shape)")


def flip(masks: torch.Tensor) -> None:
    masks[0] ^= 1


def exchange_bits(masks: torch.Tensor) -> None:
    """As many bits in all, but one of the first layer's is now of the second."""
    first, second = (next(i for i in own if masks[i] not in (0, 255)) for own in (range(4), range(5, 8)))
    masks[first] &= masks[first] - 1
    masks[second] |= masks[second] + 1


def set_beyond(masks: torch.Tensor) -> None:
    """As many bits as values, but one beyond the last of 36 positions."""
    used = next(i for i in range(4) if masks[i])
    masks[used] &= masks[used] - 1
    masks[4] |= 0b10000


@pytest.mark.parametrize("spoil", [flip, exchange_bits, set_beyond])
def test_masks_of_older_files_that_count_other_values(spoil, tmp_path: Path):
    path = tmp_path / "m.safetensors"
    path.write_bytes((FIXTURES / "format_3" / "mixed.safetensors").read_bytes())
    with opened(path) as file:
        spoil(file.entries["masks"])
    model = make_mixed()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"the positions of \d\.weight make no sense: their mask does not count"):
        regrow.load(path, model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("how", ["cut", "longer", "empty", "text", "missing"])
def test_files_that_are_no_files_of_ours(how: str, path: Path):
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-7], "longer": content + b"\0", "text": b"hello, world" * 10}.get(how, b""))
    if how == "missing":
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"m\.safetensors"):
        regrow.describe(path)


WORDS = st.sampled_from(["", "a", "a.", "weight", "dense:float32", "values:float32", "positions", "buffers:float32"])
NUMBERS = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([10**18, 2**63, 10**40, 0.5])
JSON = st.recursive(NUMBERS | WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner))
KINDS = st.lists(st.dictionaries(WORDS, WORDS) | JSON, max_size=3)
CELLS = st.lists(st.integers(0, 3) | st.lists(st.integers(0, 3))) | st.tuples(st.lists(NUMBERS), *[NUMBERS] * 3)
ROWS = st.lists(CELLS | NUMBERS, max_size=4)


@settings(deadline=None, max_examples=300)
@given(KINDS | JSON, st.dictionaries(WORDS, ROWS | JSON) | JSON, st.dictionaries(WORDS, WORDS) | JSON)
def test_any_json_is_an_index_or_a_value_error(kinds: object, modules: object, aliases: object):
    told = {"kinds": json.dumps(kinds), "modules": json.dumps(modules), "aliases": json.dumps(aliases)}
    try:
        index = decode(told, 0)
    except ValueError:
        return
    assert index.aliases.keys().isdisjoint(index.pieces)
    assert all(0 <= piece.num_stored <= piece.num_positions < 2**63 for piece in index.pieces.values())


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_without_a_checksum_any_bytes_changed_are_a_value_error_or_another_model(tmp_path_factory, data):
    content = bytearray((FIXTURES / "format_2" / "mixed.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, header - 1) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    path.write_bytes(content)
    for read in (regrow.describe, regrow.load_tensors):
        with suppress(ValueError):
            read(path)


def peak_memory_to(read: Callable[[Path], object], path: Path) -> int:
    """What Python takes at most to find out that a file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it tells of more tensors than a file of its length can have"):
            read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MANY = {
    "tensors": lambda file: (
        file.kinds.append({f"{number}": "dense:float32" for number in range(1000)}),
        file.modules.update({f"{number}": [2, *[[0]] * 1000] for number in range(500)}),
    ),
    "modules": lambda file: file.modules.update({f"{number}": [2] for number in range(200_000)}),
    "aliases": lambda file: file.metadata.update(aliases=json.dumps({f"{n}": "0.bias" for n in range(120_000)})),
    "lists": lambda file: file.metadata.update(kinds=f"[{'[],' * 800_000}[]]"),
}


@pytest.mark.parametrize("name", MANY)
def test_a_file_that_is_little_but_names_is_refused_at_little_cost(name: str, path: Path):
    with opened(path) as file:
        MANY[name](file)
    assert path.stat().st_size > 1_000_000
    for read in (regrow.describe, regrow.load_tensors):
        assert peak_memory_to(read, path) < 5 * path.stat().st_size


def test_what_nothing_would_read_is_not_written(tmp_path: Path):
    empty = {f"{module}.{number}": torch.zeros(0) for module in range(50) for number in range(1000)}
    with pytest.raises(ValueError, match="cannot be saved, as nothing would read the file: it tells of more tensors"):
        write(tmp_path / "m.safetensors", empty, {}, aliases={}, made_by={})
    assert not list(tmp_path.iterdir())
