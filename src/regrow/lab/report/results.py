"""Finished runs as results: checked, told apart by labels, and gathered over seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from statistics import mean, median, stdev
from typing import Any

from regrow.lab.config import Config
from regrow.lab.data import Score
from regrow.lab.report.formats import slug
from regrow.lab.report.labels import experiment_title, family, family_rank, label, paper_run, shared_departures
from regrow.lab.report.reference import Reference, reference_for
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


@dataclass(frozen=True)
class Group:
    """Results that differ in nothing but the seed and, where nobody compares, how weights were stored.

    `label` tells lengths apart where needed, `name` does not.
    """

    name: str
    label: str
    family: str
    sparsity: float | None
    results: tuple[Result, ...]

    @property
    def config(self) -> Config:
        return self.results[0].config

    @property
    def score(self) -> Score:
        return self.config.data.score

    @property
    def scores(self) -> list[float]:
        return [result.score for result in self.results]

    @property
    def mean(self) -> float:
        return mean(self.scores)

    @property
    def sd(self) -> float | None:
        """The sample's, with n - 1; unknown for one run."""
        return stdev(self.scores) if len(self.results) > 1 else None

    @property
    def median(self) -> float:
        return median(self.scores)

    def median_of(self, quantity: str) -> float:
        return median(float(getattr(result, quantity)) for result in self.results)

    @property
    def representative(self) -> Result:
        """The run in the middle by its score, the lower one of two."""
        ordered = sorted(self.results, key=lambda result: (result.score, result.config.seed))
        return ordered[(len(ordered) - 1) // 2]

    @property
    def reference(self) -> Reference | None:
        return reference_for(str(self.config.model), self.config.data.in_words(), self.name, self.sparsity)

    @property
    def paper_epochs(self) -> int:
        """How long the paper trained such a network."""
        return paper_run(self.config).num_epochs

    @property
    def has_other_length(self) -> bool:
        return self.config.num_epochs != self.paper_epochs


@dataclass(frozen=True)
class Experiment:
    """All results of one network on one data set. `shared`: in what all of them depart from the paper alike."""

    config: Config
    """One of its runs, for what all have in common."""
    shared: list[str]
    groups: list[Group]

    @property
    def score(self) -> Score:
        return self.config.data.score

    @property
    def time(self) -> str:
        """What its figures are drawn over, "epoch" or "step"."""
        return "epoch" if all(group.config.max_steps is None for group in self.groups) else "step"

    def best_first(self, groups: Sequence[Group]) -> list[Group]:
        return sorted(groups, key=lambda group: group.median if self.score.is_lower_better else -group.median)

    @property
    def title(self) -> str:
        return experiment_title(self.config)

    @property
    def slug(self) -> str:
        """A name for files and anchors."""
        return slug(f"{self.config.model.in_words()}-{self.config.data.in_words()}")

    @property
    def results(self) -> list[Result]:
        return [result for group in self.groups for result in group.results]

    @property
    def sparsities(self) -> list[float]:
        return sorted({group.sparsity for group in self.groups if group.sparsity is not None})

    def at(self, sparsity: float | None) -> list[Group]:
        """The groups at one sparsity; dense ones belong to all."""
        return [group for group in self.groups if group.sparsity in (None, sparsity)]

    @property
    def chosen_sparsity(self) -> float | None:
        """The sparsity with the most methods, the highest of several, for figures that show one."""
        return max(self.sparsities, key=lambda sparsity: (len(self.at(sparsity)), sparsity), default=None)


@dataclass(frozen=True)
class Collection:
    """Everything found: experiments, runs that are not finished, and sentences on what cannot be used."""

    experiments: list[Experiment]
    unfinished: list[Run]
    problems: list[str]

    @property
    def results(self) -> list[Result]:
        return [result for experiment in self.experiments for result in experiment.results]


def collect(runs: Sequence[Run], problems: Sequence[str] = ()) -> Collection:
    """Runs sorted into experiments and groups; a run that is there twice counts once."""
    found: dict[str, Result] = {}
    unfinished: dict[str, Run] = {}
    sentences = list(problems)
    for run in runs:
        if run.summary is None:
            unfinished[run.config.id] = run
            continue
        try:
            result = read_result(run)
        except ValueError as error:
            sentences.append(str(error))
            continue
        if result.id in found:
            sentences.append(f"{result.id} was found more than once; it counts once")
        found.setdefault(result.id, result)
    alike: dict[tuple[str, str], list[Result]] = {}
    for result in found.values():
        alike.setdefault((result.config.model.in_words(), result.config.data.in_words()), []).append(result)
    experiments = [_experiment(alike[pair]) for pair in sorted(alike)]
    return Collection(experiments, [run for id_, run in unfinished.items() if id_ not in found], sentences)


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


def _experiment(mine: Sequence[Result]) -> Experiment:
    shared = shared_departures([result.config for result in mine])
    unsaid = shared if _compares_storages(mine) else [*shared, "packed"]
    mixes_lengths = len({(result.config.epochs, result.config.max_steps) for result in mine}) > 1
    gathered: dict[tuple[str, str, float | None], list[Result]] = {}
    for result in mine:
        name = label(result.config, without=unsaid)
        length = result.config.max_steps or result.config.epochs
        unit = "epochs" if result.config.max_steps is None else "steps"
        whole = f"{name}, {unit}={length}" if mixes_lengths else name
        sparsity = result.config.sparsity if "sparsity" in result.config.method else None
        gathered.setdefault((name, whole, sparsity), []).append(result)
    groups = [
        Group(name, whole, family(some[0].config), sparsity, tuple(sorted(some, key=lambda r: r.config.seed)))
        for (name, whole, sparsity), some in gathered.items()
    ]
    return Experiment(mine[0].config, shared, sorted(groups, key=_place))


def _compares_storages(results: Sequence[Result]) -> bool:
    """Whether anything was trained both ways. If not, how weights were stored is no difference between results."""
    stored = Counter(replace(result.config, storage="dense").id for result in results)
    return max(stored.values()) > 1


def _place(group: Group) -> tuple[float, int, int, str]:
    """Dense first, then the sparsest, methods in the order of the paper."""
    return (-2 if group.sparsity is None else -group.sparsity, family_rank(group.family), len(group.label), group.label)
