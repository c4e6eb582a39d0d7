"""Results as CSV, plain numbers."""

import csv
import io
from collections.abc import Mapping, Sequence

from regrow.lab.report.result import Result
from regrow.lab.report.results import Collection, Group
from regrow.lab.report.tables import WHERE, Value


def results_csv(found: Collection) -> str:
    """One line per method and sparsity."""
    lines = [_group_line(group) for experiment in found.experiments for group in experiment.groups]
    return _csv(lines)


def _group_line(group: Group) -> dict[str, Value]:
    reference, config, key = group.reference, group.config, group.score.key
    return {
        "model": config.model.in_words(),
        "data": config.data.in_words(),
        "method": group.label,
        "sparsity": group.sparsity,
        **({"chosen": group.chosen} if group.chosen else {}),
        "n": len(group.results),
        f"{key}_mean": round(group.mean, 4),
        f"{key}_sd": None if group.sd is None else round(group.sd, 4),
        f"{key}_median": round(group.median, 4),
        f"{key}_min": min(group.scores),
        f"{key}_max": max(group.scores),
        "reference_mean": reference.mean if reference else None,
        "reference_sd": reference.sd if reference else None,
        "reference_epochs": group.paper_epochs if reference else None,
        "parameters": group.median_of("parameters"),
        "bits": group.median_of("bits"),
        "training_bytes": training_bytes(group),
        "flops": group.median_of("flops"),
        "epochs": config.num_epochs,
        "seconds_per_run": round(group.median_of("seconds"), 2),
    }


def training_bytes(group: Group) -> float | None:
    """Of what is kept while training; unknown where runs were stored in different ways."""
    storages = {result.config.storage for result in group.results}
    is_known = len(storages) == 1 and all(result.training_bytes is not None for result in group.results)
    return group.median_of("training_bytes") if is_known else None


def runs_csv(found: Collection) -> str:
    """One line per finished run."""
    lines = [
        _run_line(group, result)
        for experiment in found.experiments
        for group in experiment.groups
        for result in group.results
    ]
    return _csv(lines)


def _run_line(group: Group, result: Result) -> dict[str, Value]:
    return {
        "id": result.id,
        "model": result.config.model.in_words(),
        "data": result.config.data.in_words(),
        "method": group.label,
        "sparsity": group.sparsity,
        "seed": result.config.seed,
        "epochs": result.epochs,
        group.score.key: result.score,
        "loss": result.loss,
        "parameters": result.parameters,
        "bits": result.bits,
        "training_bytes": result.training_bytes,
        "flops": result.flops,
        "seconds": result.seconds,
        **{key: result.provenance.get(key, "") for key in (*WHERE, "finished")},
    }


def _csv(lines: Sequence[Mapping[str, Value]]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows([{key: _exact(value) for key, value in line.items()} for line in lines])
    return text.getvalue()


def _exact(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() else value
