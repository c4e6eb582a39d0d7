"""The commands that measure."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table

from regrow.lab.cli.options import Device, choose_device
from regrow.lab.cli.terminal import err, explained, out

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.bench import Overhead, Speed

Row = TypeVar("Row", "Speed", "Overhead")
bench = typer.Typer(no_args_is_help=True, help="Measure how fast the lab is, and what rewiring costs in it.")
Quick = Annotated[bool, typer.Option("--quick", help="Fewer and shorter blocks of steps.")]
Out = Annotated[Path | None, typer.Option("--out", help="A JSON file for the numbers and what they were made with.")]


@bench.command("lab")
@explained
def bench_lab(
    model: Annotated[str, typer.Option(help="The model to train.")] = "wrn_28_2",
    lanes: Annotated[
        list[int] | None, typer.Option(help="Runs at a time; may be repeated. By default 1, 4, 8.")
    ] = None,
    device: Device = "auto",
    quick: Quick = False,
    out_file: Out = None,
) -> None:
    """Time per step and run: the plain loop, a captured step, a compiled one, several at once.

    Example: `regrow bench lab --lanes 8`
    """
    import torch

    from regrow.lab.bench import bench_lab as measure

    _check_out(out_file)
    where = torch.device(choose_device(device))
    measured = measure(model, where, lanes or [1, 4, 8], 20 if quick else 100, tell=err.print)
    rows = keep(measured, out_file, {"bench": "lab", "model": model}, where)
    table = Table("how", "ms per step", "s per epoch and run", "times as fast", title=f"{model} on {where}")
    for row in rows:
        seconds = (f"{1000 * row.step:.2f}", f"{row.epoch:.2f}")
        table.add_row(row.how, *seconds, f"{rows[0].step / row.step:.1f}")
    out.print(table)


@bench.command("overhead")
@explained
def bench_overhead(
    model: Annotated[str, typer.Option(help="The model to train.")] = "wrn_28_2",
    method: Annotated[list[str] | None, typer.Option(help="May be repeated. By default all of the table.")] = None,
    lanes: Annotated[int, typer.Option(min=1, help="Runs at a time on each side.")] = 1,
    device: Device = "auto",
    eager: Annotated[bool, typer.Option("--eager", help="In a plain loop, not captured and compiled.")] = False,
    quick: Quick = False,
    out_file: Out = None,
) -> None:
    """What each method costs beside static sparse training: ratios of step times, as in the paper's wall-clock table.

    Example: `regrow bench overhead --model wrn_28_2 --quick`
    """
    import torch

    from regrow.lab.bench import METHODS
    from regrow.lab.bench import bench_overhead as measure

    _check_out(out_file)
    where = torch.device(choose_device(device))
    blocks, steps = (5, 40) if quick else (25, 100)
    is_captured = not eager and where.type == "cuda"
    measured = measure(
        model,
        where,
        is_captured=is_captured,
        num_steps=steps,
        num_blocks=blocks,
        tell=err.print,
        methods=method or METHODS,
        num_lanes=lanes,
    )
    how = f"{'captured' if is_captured else 'plain loop'}, {lanes} at a time"
    rows = keep(measured, out_file, {"bench": "overhead", "model": model, "how": how}, where)
    columns = ("method", "between rewirings", "every 20 steps", "sd", "ms per rewiring", "over the schedule")
    table = Table(*columns, title=f"{model} on {where}, {how}, relative to static")
    for row in rows:
        ratios = (f"{row.quiet:.4f}", f"{row.busy:.4f}", f"{row.deviation:.4f}")
        table.add_row(row.method, *ratios, f"{1000 * row.rewiring:.2f}", f"{row.average:.4f}")
    out.print(table)


def _check_out(path: Path | None) -> None:
    """Before anything is measured."""
    if path is not None:
        from regrow.files.export import check_place

        check_place(path)


def keep(measured: Iterable[Row], path: Path | None, what: dict[str, str], device: Any) -> list[Row]:
    """All that is measured; after each row the file says what there is so far, and what it was made with."""
    from regrow.files.atomic import write_text
    from regrow.lab.run import provenance

    rows: list[Row] = []
    for row in measured:
        rows.append(row)
        if path is not None:
            made_with = {**provenance.collect(device), "finished": provenance.now()}
            content = {**what, "rows": [asdict(row) for row in rows], "provenance": made_with}
            write_text(path, json.dumps(content, indent=2) + "\n")
    return rows
