"""Run folders as training writes them, with made-up but consistent numbers."""

from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from regrow.lab import models
from regrow.lab.config import Config, make_config
from regrow.lab.models import sparse_layers
from regrow.lab.run.folder import FORMAT, METRICS, RunFolder

STEPS_PER_EPOCH = 600
PROVENANCE = {
    "regrow": "0.1.0",
    "revision": "0123456789ab",
    "python": "3.11.7",
    "torch": "2.13.0",
    "device": "cpu",
    "threads": 2,
    "host": "An example of a processor",
    "finished": "2026-01-31T12:00:00+00:00",
}


@cache
def shapes(model: str) -> tuple[dict[str, tuple[int, ...]], int]:
    """Shapes of the sparse layers, and the number of all other parameters."""
    built = models.build(model)
    sizes = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    sparse = {name: sizes[name] for name in sparse_layers(built)}
    return sparse, sum(map(prod, sizes.values())) - sum(map(prod, sparse.values()))


def write_run(root: Path, accuracy: float, *, finished: bool = True, seconds: float = 60.0, **settings: Any) -> Path:
    """The folder of a run with this accuracy at its end."""
    config = make_config(settings)
    folder = RunFolder(root / config.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.claim(config)
    layers = _layers(config)
    folder.write_table("metrics.csv", METRICS, _metrics(config, accuracy, seconds, layers[-1]))
    folder.write_table("layers.csv", ["epoch", *shapes(str(config.model))[0]], layers)
    history = _history(config)
    if history:
        folder.write_table("history.csv", list(history[0]), history)
    if finished:
        folder.write_json("summary.json", _summary(config, accuracy, seconds, layers[-1]))
    return folder.path


def with_provenance(path: Path, **told: Any) -> None:
    """As if a finished run had been somewhere else."""
    summary = RunFolder(path).read_json("summary.json")
    RunFolder(path).write_json("summary.json", summary | {"provenance": {**summary["provenance"], **told}})


def write_examples(root: Path, epochs: int = 10) -> None:
    """A dense network and three sparse methods at two sparsities, three seeds each."""
    for seed in range(3):
        common = {"seed": seed, "epochs": epochs}
        write_run(root, 98.3 + 0.1 * seed, method="Dense", **common)
        for sparsity, lost in ((0.99, 1.0), (0.95, 0.2)):
            sparse = {**common, "sparsity": sparsity}
            write_run(root, 98.2 - lost + 0.2 * seed, method="DSR", **sparse)
            write_run(root, 97.9 - 8 * lost + 0.3 * seed, method="SET", **sparse)
            write_run(root, 97.5 - 50 * lost + 2 * seed, method="Static", **sparse)


def _layers(config: Config) -> list[dict[str, float]]:
    """Active weights by epoch; DSR and SNFS let the first layer give away up to half of its weights."""
    active = {name: round((1 - config.sparsity) * prod(shape)) for name, shape in shapes(str(config.model))[0].items()}
    first, *others = active
    moves = config.method_name in ("DSR", "SNFS")
    rows = []
    for epoch in range(config.num_epochs + 1):
        given = round(active[first] * 0.5 * epoch / config.num_epochs) if moves else 0
        share, rest = divmod(given, len(others))
        counts = {name: active[name] + share + (i < rest) for i, name in enumerate(others)}
        rows.append({"epoch": epoch, first: active[first] - given, **counts})
    return rows


def _metrics(config: Config, accuracy: float, seconds: float, last: dict[str, float]) -> list[dict[str, float]]:
    active = sum(last.values()) - last["epoch"]
    rows = []
    for epoch in range(1, config.num_epochs + 1):
        short = (100 - accuracy) * (config.num_epochs / epoch - 1) / 2
        numbers = (epoch, epoch * STEPS_PER_EPOCH, seconds * epoch / config.num_epochs, 0.1 / epoch)
        learned = max(accuracy - short, 10.0)
        loss = (100.5 - learned) / 40
        rows.append(dict(zip(METRICS, (*numbers, loss, learned, loss, learned, active, config.sparsity), strict=True)))
    return rows


def _history(config: Config) -> list[dict[str, Any]]:
    if config.method_name in ("Dense", "Static"):
        return []
    names = list(shapes(str(config.model))[0])
    rows = []
    for i in range(4 * config.num_epochs):
        counts = {f"{what}:{name}": 100 + 7 * (i % 5) for what in ("pruned", "grown") for name in names}
        threshold = {"threshold": 0.001 * 2 ** (i % 3) if config.method_name == "DSR" else ""}
        rows.append({"step": 150 * (i + 1), **threshold, **counts})
    return rows


def _summary(config: Config, accuracy: float, seconds: float, last: dict[str, float]) -> dict[str, Any]:
    sparse, num_dense = shapes(str(config.model))
    is_dense = config.method_name == "Dense"
    layers = [
        {"name": name, "shape": shape, "active": last[name], "sparsity": 1 - last[name] / prod(shape)}
        for name, shape in sparse.items()
    ]
    active = int(sum(layer["active"] for layer in layers))
    num_positions = 0 if is_dense else sum(prod(shape) for shape in sparse.values())
    size = {"dense": num_dense, "active": active, "positions": num_positions, "parameters": num_dense + active}
    return {
        "format": FORMAT,
        "id": config.id,
        "accuracy": accuracy,
        "loss": (100.5 - accuracy) / 40,
        "epochs": config.num_epochs,
        "steps": config.num_epochs * STEPS_PER_EPOCH,
        "seconds": seconds,
        "size": {**size, "bits": 32 * size["parameters"] + num_positions},
        "flops": 2 * active,
        "layers": [] if is_dense else layers,
        "storage": "dense",
        "provenance": PROVENANCE,
    }
