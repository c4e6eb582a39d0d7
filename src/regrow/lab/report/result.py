"""A finished run as a result: read from its folder, and checked."""

from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from regrow.lab.config import Config
from regrow.lab.report.labels import label
from regrow.lab.run.folder import Row, Run


@dataclass(frozen=True)
class Layer:
    """A sparse layer as a run left it."""

    name: str
    shape: tuple[int, ...]
    active: int

    @property
    def positions(self) -> int:
        return prod(self.shape)

    @property
    def sparsity(self) -> float:
        return 1 - self.active / self.positions


@dataclass(frozen=True)
class Result:
    """What a finished run says of itself; accuracies in percent."""

    config: Config
    accuracy: float
    score: float
    """What it is judged by, which for some data is not the accuracy."""
    loss: float
    epochs: int
    seconds: float
    parameters: int
    bits: int
    training_bytes: int | None
    flops: int
    layers: tuple[Layer, ...]
    provenance: dict[str, str]
    metrics: list[Row]
    layer_counts: list[Row]
    history: list[Row]

    @property
    def id(self) -> str:
        return self.config.id

    @property
    def steps(self) -> list[float]:
        """At the start and after each epoch."""
        steps = {0.0: 0.0, **{row["epoch"]: row["step"] for row in self.metrics if "step" in row}}
        return [steps.get(row["epoch"], float("nan")) for row in self.layer_counts]

    def sparsities(self) -> dict[str, list[float]]:
        """The sparsity of every layer, at the start and after each epoch."""
        return {
            layer.name: [1 - row[layer.name] / layer.positions for row in self.layer_counts if layer.name in row]
            for layer in self.layers
        }


def read_result(run: Run) -> Result:
    """Refuses a summary that lacks something, or whose run has no label."""
    summary, id_ = run.summary, run.config.id
    assert summary is not None
    try:
        label(run.config)
        _check_tables(run)
        size = summary["size"]
        return Result(
            config=run.config,
            accuracy=_finite(summary["accuracy"]),
            score=_finite(summary[run.config.data.score.key]),
            loss=float("nan") if summary["loss"] is None else float(summary["loss"]),
            epochs=int(summary["epochs"]),
            seconds=_finite(summary["seconds"]),
            parameters=int(size["parameters"]),
            bits=int(size["bits"]),
            training_bytes=summary.get("training_bytes"),
            flops=int(summary["flops"]),
            layers=tuple(_read_layer(layer) for layer in summary["layers"]),
            provenance={key: str(value) for key, value in summary["provenance"].items() if value is not None},
            metrics=run.metrics,
            layer_counts=run.layers,
            history=run.history,
        )
    except KeyError as error:
        raise ValueError(f"the summary of {id_} has no {error.args[0]}; remove its folder to train it anew") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the run {id_} cannot be used: {error}") from None


def _check_tables(run: Run) -> None:
    """Refuse tables that lack a column that figures need."""
    needed = {"metrics.csv": (run.metrics, {"epoch"}), "history.csv": (run.history, {"step"})}
    layers = {str(layer["name"]) for layer in (run.summary or {})["layers"]}
    needed["layers.csv"] = (run.layers, {"epoch", *layers})
    for name, (rows, columns) in needed.items():
        lacking = sorted({column for row in rows for column in columns - row.keys()})
        if lacking:
            raise ValueError(f"{name} has no {lacking[0]} in some line")


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"its summary says {value}")
    return number


def _read_layer(layer: dict[str, Any]) -> Layer:
    shape = tuple(int(size) for size in layer["shape"])
    if prod(shape) < 1:
        raise ValueError(f"layer {layer['name']} has no weights")
    return Layer(str(layer["name"]), shape, int(layer["active"]))
