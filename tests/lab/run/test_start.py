"""Runs that start from another run: compressed networks and lottery tickets."""

import shutil
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import small

from regrow.lab.config import make_config
from regrow.lab.data import synthesize
from regrow.lab.run.folder import BadRun, read_run
from regrow.lab.run.loop import Options, train
from regrow.lab.run.start import build_model

PARENT = {"method": {"name": "DSR", "prune": 2000, "period": 4}}


def run(root: Path, **settings: object) -> Path:
    config = small(**settings)
    train(config, root, Options(threads=1))
    return root / config.id


def tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / f"{name}.safetensors")


@pytest.fixture
def dsr(tmp_path: Path) -> Path:
    return run(tmp_path, method={"name": "DSR", "prune": 2000})


def ticket(root: Path, topology: str, weights: str) -> Path:
    return run(
        root, method={"name": "Static"}, start={"topology": topology, "weights": weights, "run": PARENT}, stretch=1.0
    )


def test_a_ticket_has_the_others_topology_and_its_first_weights(tmp_path: Path, dsr: Path):
    folder = ticket(tmp_path, "final", "initial")
    final = tensors(dsr, "final_topology")
    assert all(torch.equal(mask, final[name]) for name, mask in tensors(folder, "initial_topology").items())
    assert all(torch.equal(mask, final[name]) for name, mask in tensors(folder, "final_topology").items())
    first = tensors(dsr, "initial_weights")
    assert all(torch.equal(value, first[name]) for name, value in tensors(folder, "initial_weights").items())


def test_fresh_weights_of_a_control_of_a_control_are_other_draws_again():
    dsr = {"method": "DSR"}
    first = {"method": "Static", "start": {"topology": "final", "run": dsr}}
    second = {"method": "Static", "start": {"topology": "counts", "run": first}}
    models = [build_model(make_config({"sparsity": 0.9, **run}), synthesize()) for run in (dsr, first, second)]
    weights = [model.fc1.weight for model in models]
    assert not any(torch.equal(one, other) for one, other in combinations(weights, 2))


def test_first_weights_are_scaled_by_density_and_kept_as_they_were_drawn(tmp_path: Path):
    still = {"method": {"name": "Static", "l1": 0.0}, "optimizer": {"lr": 0.0}, "stretch": 1.0, "epochs": 1}
    plain, scaled = run(tmp_path, **still), run(tmp_path, **still, start={"rescale": "density"})
    drawn, left = tensors(plain, "initial_weights"), tensors(scaled, "final_weights")
    assert all(torch.equal(own, drawn[name]) for name, own in tensors(scaled, "initial_weights").items())
    for name, mask in tensors(scaled, "initial_topology").items():
        density = int(mask.count_nonzero()) / mask.numel()
        assert torch.equal(left[name], (drawn[name] * mask).mul(density**-0.5))


def test_moments_of_grown_weights_are_what_the_run_asks_for(tmp_path: Path):
    moving = {"method": {"name": "SET", "period": 2}, "optimizer": {"name": "AdamW", "lr": 0.01}, "epochs": 1}
    left = [
        tensors(run(tmp_path, **moving, start={"moments": moments}), "final_weights")
        for moments in ("clean", "aged", "informed")
    ]
    assert not any(torch.equal(one["fc1.weight"], other["fc1.weight"]) for one, other in combinations(left, 2))


def test_fresh_weights_are_other_draws(tmp_path: Path, dsr: Path):
    first, fresh = tensors(dsr, "initial_weights"), tensors(ticket(tmp_path, "final", "fresh"), "initial_weights")
    assert not any(torch.equal(fresh[name], first[name]) for name in ("fc1.weight", "fc2.weight", "fc3.weight"))
    assert fresh["fc1.weight"].std() == pytest.approx(float(first["fc1.weight"].std()), rel=0.01)


def test_a_random_topology_with_the_others_counts(tmp_path: Path, dsr: Path):
    final, shuffled = tensors(dsr, "final_topology"), tensors(ticket(tmp_path, "counts", "fresh"), "initial_topology")
    assert all(mask.sum() == final[name].sum() for name, mask in shuffled.items())
    overlap = int((final["fc1.weight"] & shuffled["fc1.weight"]).sum())
    assert overlap < 0.2 * int(final["fc1.weight"].sum())


def test_a_random_topology_with_the_same_budget(tmp_path: Path, dsr: Path):
    folder = run(tmp_path, method={"name": "Static"}, start={"topology": "random", "weights": "initial", "run": PARENT})
    final, drawn = tensors(dsr, "final_topology"), tensors(folder, "initial_topology")
    assert sum(int(mask.sum()) for mask in final.values()) == sum(int(mask.sum()) for mask in drawn.values())


def test_a_compressed_run_continues_the_dense_one(tmp_path: Path):
    dense = run(tmp_path, method={"name": "Dense"}, epochs=3, batch_size=100)
    compressed = run(tmp_path, method={"name": "Gradual"}, epochs=3, batch_size=100)
    last, first = tensors(dense, "final_weights"), tensors(compressed, "initial_weights")
    assert all(torch.equal(value, last[name]) for name, value in first.items())
    layers = read_run(compressed).layers
    assert sum(layers[0].values()) == 266_200
    assert sum(layers[-1].values()) - layers[-1]["epoch"] == round(0.1 * 266_200)


def test_the_largest_weights_of_a_trained_network(tmp_path: Path):
    dense = run(tmp_path, method={"name": "Dense"})
    pruned = run(
        tmp_path,
        method={"name": "Static"},
        start={"topology": "magnitude", "weights": "final", "run": {"method": "Dense"}},
    )
    weights, mask = (
        tensors(dense, "final_weights")["fc1.weight"].abs(),
        tensors(pruned, "initial_topology")["fc1.weight"],
    )
    assert weights[mask].min() >= weights[~mask].max()


def test_a_topology_of_whole_channels_fits_its_sparsity_but_for_one(tmp_path: Path):
    channels = {"name": "Static", "sparsity": 0.8, "granularity": "channel"}
    run(tmp_path, method=channels)
    start = {"topology": "final", "run": {"method": channels}}
    run(tmp_path, method=channels, start=start)
    with pytest.raises(ValueError, match="give both runs the same sparsity"):
        run(tmp_path, method={**channels, "sparsity": 0.9}, start=start)


def test_a_topology_of_another_sparsity_is_refused(tmp_path: Path, dsr: Path):
    with pytest.raises(ValueError, match="give both runs the same sparsity"):
        run(
            tmp_path,
            method={"name": "Static", "sparsity": 0.95},
            start={"topology": "final", "run": {"method": {**PARENT["method"], "sparsity": 0.9}}},
        )


def test_the_folder_of_another_run_is_no_parent(tmp_path: Path, dsr: Path):
    other = run(tmp_path, method={"name": "Dense"})
    shutil.rmtree(dsr)
    shutil.copytree(other, dsr)
    with pytest.raises(BadRun, match="train that one first"):
        ticket(tmp_path, "final", "fresh")


def test_a_run_whose_parent_is_missing_says_so(tmp_path: Path):
    with pytest.raises(BadRun, match="train that one first"):
        ticket(tmp_path, "final", "fresh")
