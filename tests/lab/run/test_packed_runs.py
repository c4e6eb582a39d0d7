"""Runs with memory for their active weights only."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import assert_same_result, small, stop_after

from regrow.lab.config import make_config
from regrow.lab.report.labels import label
from regrow.lab.run.loop import Options, train


def summary_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def two_threads():
    """Sums of another number of threads round in another way, and a threshold turns that into another topology."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["Static", "DSR", "SET", "RigL"])
def test_a_packed_run_ends_with_the_topology_of_a_dense_one(method: str, tmp_path: Path):
    dense, packed = (
        small(method={"name": method}, storage=storage, start={"run": None, "weights": "fresh"})
        for storage in ("dense", "packed")
    )
    for config in (dense, packed):
        train(config, tmp_path, Options())
    one, other = tmp_path / dense.id, tmp_path / packed.id
    topology = load_file(one / "final_topology.safetensors")
    assert all(torch.equal(topology[k], m) for k, m in load_file(other / "final_topology.safetensors").items())
    weights = load_file(one / "final_weights.safetensors")
    for name, values in load_file(other / "final_weights.safetensors").items():
        torch.testing.assert_close(values, weights[name], rtol=1e-3, atol=1e-4)
    assert summary_of(other)["storage"] == "packed"
    assert summary_of(other)["size"] == summary_of(one)["size"]
    assert summary_of(other)["training_bytes"] < 0.2 * summary_of(one)["training_bytes"]


def test_a_packed_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path):
    config = small(storage="packed")
    train(config, tmp_path / "whole", Options(threads=1))
    stop_after(7, config, tmp_path / "parts")
    train(config, tmp_path / "parts", Options(threads=1))
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


def test_a_packed_run_is_another_run_and_says_so():
    dense = make_config({"method": "DSR", "sparsity": 0.99})
    packed = make_config({"method": "DSR", "sparsity": 0.99, "storage": "packed"})
    assert packed.id != dense.id
    assert label(packed) == "DSR, packed"


def test_a_storage_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="storage"):
        small(storage="dens")
