"""What the bench commands measured, as tables of the page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.lab.models import read_model
from regrow.lab.report.tables import Cell, Column, Grid

# Epoch time relative to static sparse training, as the paper prints it.
_PAPER = {
    "wrn_28_2": {"DSR": 1.083, "SET": 1.087, "DeepR": 4.466},
    "resnet_50": {"DSR": 1.005, "SET": 1.009, "DeepR": 5.636},
}


@dataclass(frozen=True)
class Bench:
    """A table, and in its title and note what was measured and with what."""

    title: str
    note: str
    grid: Grid


def read_benches(paths: Sequence[Path]) -> tuple[list[Bench], list[str]]:
    """All overheads that `regrow bench overhead --out FILE` left below some folders, and what is none after all."""
    benches, problems = [], []
    for file in sorted(file for path in paths for file in path.rglob("*.json") if file.name.startswith("overhead")):
        try:
            benches.append(_overhead(json.loads(file.read_text())))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(f"{file} is not what `regrow bench overhead --out` writes ({error!r}); measure again")
    return benches, problems


def _overhead(measured: dict[str, Any]) -> Bench:
    columns = [
        Column("method", "Method", is_number=False),
        Column("average", "Step time over the whole schedule"),
        Column("paper", "In the paper"),
        Column("quiet", "Between rewirings"),
        Column("rewiring", "Milliseconds per rewiring"),
    ]
    paper = _PAPER.get(measured["model"], {})
    rows = [
        [
            Cell(row["method"], row["method"], family=row["method"]),
            _ratio(row["average"], f"sd {row['deviation']:.4f} with a rewiring every few steps"),
            _ratio(paper.get(row["method"])),
            _ratio(row["quiet"]),
            Cell(f"{1000 * row['rewiring']:.2f}", row["rewiring"]),
        ]
        for row in measured["rows"]
        if row["method"] != "Static"
    ]
    network = read_model(measured["model"]).title
    made_with = measured["provenance"]
    note = f"{measured['how']}; {made_with['device']}, torch {made_with['torch']}, {made_with['finished'][:10]}."
    return Bench(network, note, Grid(columns, rows))


def _ratio(value: float | None, remark: str = "") -> Cell:
    return Cell("" if value is None else f"{value:.4f}", value, remark)
