"""The commands that measure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from regrow.lab.cli_common import Device, err, explained, make_options, out

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
    where = torch.device(make_options(device, None, None, 0).device)
    rows = measure(model, where, lanes or [1, 4, 8], 20 if quick else 100, tell=err.print)
    table = Table("how", "ms per step", "s per epoch and run", "times as fast", title=f"{model} on {where}")
    for row in rows:
        seconds = (f"{1000 * row.step:.2f}", f"{row.epoch:.2f}")
        table.add_row(row.how, *seconds, f"{rows[0].step / row.step:.1f}")
    out.print(table)
    _write(out_file, "lab", model, where, rows)


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
    where = torch.device(make_options(device, None, None, 0).device)
    blocks, steps = (5, 40) if quick else (25, 100)
    is_captured = not eager and where.type == "cuda"
    rows = measure(
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
    columns = ("method", "between rewirings", "every 20 steps", "sd", "ms per rewiring", "over the schedule")
    table = Table(*columns, title=f"{model} on {where}, {how}, relative to static")
    for row in rows:
        ratios = (f"{row.quiet:.4f}", f"{row.busy:.4f}", f"{row.deviation:.4f}")
        table.add_row(row.method, *ratios, f"{1000 * row.rewiring:.2f}", f"{row.average:.4f}")
    out.print(table)
    _write(out_file, "overhead", model, where, rows, how=how)


def _check_out(path: Path | None) -> None:
    """Before anything is measured."""
    if path is not None:
        from regrow.exporting import check_place

        check_place(path)


def _write(path: Path | None, what: str, model: str, device: Any, rows: Sequence[Any], **more: str) -> None:
    """Keep what was measured, and with what."""
    if path is None:
        return
    from regrow.atomic import write_text
    from regrow.lab import provenance

    made_with = {**provenance.collect(device), "finished": provenance.now()}
    content = {"bench": what, "model": model, **more, "rows": [asdict(row) for row in rows], "provenance": made_with}
    write_text(path, json.dumps(content, indent=2) + "\n")
