"""Small files: what is saved comes back bit for bit, and what is damaged or hostile is refused."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import regrow


def trained(method: regrow.Method, num_steps: int = 3) -> tuple[nn.Module, regrow.Sparsifier]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, method)
    for _ in range(num_steps):
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, sparse


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_holds_values_and_one_bit_per_position(tmp_path: Path):
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[0.0, 1.5, 0.0, 0.0], [2.5, 0.0, 0.0, -3.0]])
    regrow.save(tmp_path / "m.safetensors", layer)
    stored = load_file(tmp_path / "m.safetensors")
    assert stored["values:weight"].tolist() == [1.5, 2.5, -3.0]
    assert stored["mask:weight"].tolist() == [0b10010010]


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_a_trained_model_comes_back_bit_for_bit(name: str, tmp_path: Path):
    model, sparse = trained(regrow.METHODS[name](sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    assert same(regrow.load_state_dict(tmp_path / "m.safetensors"), dict(model.state_dict()))
    if not sparse.method.shares_values:
        plain = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
        masks = regrow.load(tmp_path / "m.safetensors", plain)
        assert same(masks, sparse.masks())
        assert same(dict(plain.state_dict()), dict(model.state_dict()))


def test_training_can_go_on_from_a_file(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8, prune=10, period=1))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    fresh = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))
    masks = regrow.load(tmp_path / "m.safetensors", fresh)
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    again = regrow.attach(fresh, optimizer, regrow.DSR(sparsity=0.8), start=masks)
    assert (again.budget, again.active) == (sparse.budget, sparse.budget)
    with pytest.raises(ValueError, match="load first, then attach"):
        regrow.load(tmp_path / "m.safetensors", fresh)


def test_the_file_is_as_small_as_the_description_length(tmp_path: Path):
    model = nn.Sequential(nn.Linear(1000, 500), nn.ReLU(), nn.Linear(500, 500))
    sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.9))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    bits = 32 * (sparse.active + 1000) + 750_000
    size = (tmp_path / "m.safetensors").stat().st_size
    assert bits / 8 < size < 1.01 * bits / 8


def test_values_can_be_stored_with_half_the_bits(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    regrow.save(tmp_path / "half.safetensors", model, sparse, values="bfloat16")
    back = regrow.load_state_dict(tmp_path / "half.safetensors")["0.weight"]
    assert back.dtype == torch.float32
    assert torch.equal(back, model[0].weight.detach().bfloat16().float())
    with pytest.raises(ValueError, match="values must be one of"):
        regrow.save(tmp_path / "half.safetensors", model, sparse, values="int8")


def test_describe_reads_no_weights(tmp_path: Path):
    model, sparse = trained(regrow.DSR(sparsity=0.8))
    regrow.save(tmp_path / "m.safetensors", model, sparse)
    told = regrow.describe(tmp_path / "m.safetensors")
    assert [(layer.name, layer.active) for layer in told.layers] == [(n.name, n.active) for n in sparse.layers]
    assert told.made_by["step"] == "3"
    assert told.made_by["method"].startswith("DSR(sparsity=0.8")
    assert told.num_bytes == (tmp_path / "m.safetensors").stat().st_size
    assert "0.weight" in str(told)


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path):
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    model[1].weight = model[0].weight
    regrow.save(tmp_path / "m.safetensors", model)
    assert "1.weight" not in load_file(tmp_path / "m.safetensors")
    assert same(regrow.load_state_dict(tmp_path / "m.safetensors"), dict(model.state_dict()))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.integers(0, 9),
    st.integers(0, 10**6),
)
def test_any_tensor_comes_back(tmp_path_factory, shape: list[int], dtype: torch.dtype, tenths: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator).to(dtype)
    tensor[torch.rand(shape, generator=generator) * 10 < tenths] = 0
    tensor.flatten()[:1] = -0.0
    module = nn.Module()
    module.weight = nn.Parameter(tensor)
    path = tmp_path_factory.mktemp("files") / "m.safetensors"
    regrow.save(path, module)
    back = regrow.load_state_dict(path)["weight"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    assert torch.equal(torch.signbit(back), torch.signbit(tensor))


def rewrite(path: Path, change) -> None:
    """Change the header of a file and leave the rest."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])


def sparse_told(header: dict, **told: object) -> None:
    sparse = json.loads(header["__metadata__"]["sparse"])
    sparse["0.weight"] |= told
    header["__metadata__"]["sparse"] = json.dumps(sparse)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: sparse_told(h, shape=[10**9, 10**9]),
        lambda h: sparse_told(h, shape=[20, 31]),
        lambda h: sparse_told(h, shape=[-20, -30]),
        lambda h: sparse_told(h, shape="20x30"),
        lambda h: sparse_told(h, shape=[True, 600]),
        lambda h: sparse_told(h, dtype="object"),
        lambda h: h["__metadata__"].update(sparse="[" * 100_000),
        lambda h: h["__metadata__"].update(sparse="[]"),
        lambda h: h["__metadata__"].update(sparse="{}"),
        lambda h: h["__metadata__"].update(regrow="99"),
        lambda h: h["__metadata__"].update(aliases='{"a": "nothing"}'),
        lambda h: h.pop("__metadata__"),
        lambda h: h["values:0.weight"].update(data_offsets=[0, 4]),
        lambda h: h["values:0.weight"].update(shape=[10**15]),
        lambda h: h["mask:0.weight"].update(data_offsets=h["values:0.weight"]["data_offsets"]),
        lambda h: h.update({"values:other": h.pop("values:0.weight")}),
    ],
)
def test_hostile_files_are_refused(change, tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    path = tmp_path / "m.safetensors"
    regrow.save(path, model, sparse)
    rewrite(path, change)
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        regrow.load_state_dict(path)


def test_a_mask_that_counts_other_values_is_refused(tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    path = tmp_path / "m.safetensors"
    regrow.save(path, model, sparse)
    stored = load_file(path)
    stored["mask:0.weight"][0] ^= 1
    shapes = {layer.name: {"shape": list(layer.shape), "dtype": "float32"} for layer in sparse.layers}
    save_file(stored, path, {"regrow": "1", "sparse": json.dumps(shapes)})
    with pytest.raises(ValueError, match="does not count"):
        regrow.load_state_dict(path)


@pytest.mark.parametrize("how", ["cut", "empty", "text", "missing"])
def test_files_that_are_no_files_of_ours(how: str, tmp_path: Path):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    path = tmp_path / "m.safetensors"
    regrow.save(path, model, sparse)
    content = {"cut": path.read_bytes()[:-7], "empty": b"", "text": b"hello, world" * 10, "missing": b""}[how]
    path.write_bytes(content)
    if how == "missing":
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"m\.safetensors"):
        regrow.describe(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, sparse = trained(regrow.Static(sparsity=0.8))
    path = tmp_path / "m.safetensors"
    regrow.save(path, model, sparse)
    before = path.read_bytes()
    monkeypatch.setattr("regrow.atomic.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        regrow.save(path, model)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_sparsifier_of_another_model_is_refused(tmp_path: Path):
    _, sparse = trained(regrow.Static(sparsity=0.8))
    with pytest.raises(ValueError, match="do they belong together"):
        regrow.save(tmp_path / "m.safetensors", nn.Linear(3, 3), sparse)
