"""The commands that measure."""

from typing import Annotated

import typer
from rich.table import Table

from regrow.lab.cli_common import Device, err, explained, make_options, out

bench = typer.Typer(no_args_is_help=True, help="Measure how fast the lab is, and what rewiring costs in it.")


@bench.command("lab")
@explained
def bench_lab(
    model: Annotated[str, typer.Option(help="The model to train.")] = "wrn_28_2",
    lanes: Annotated[
        list[int] | None, typer.Option(help="Runs at a time; may be repeated. By default 1, 4, 8.")
    ] = None,
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps.")] = False,
) -> None:
    """Time per step and run: the plain loop, a captured step, a compiled one, several at once.

    Example: `regrow bench lab --lanes 8`
    """
    import torch

    from regrow.lab.bench import bench_lab as measure

    where = torch.device(make_options(device, None, None, 0).device)
    rows = measure(model, where, lanes or [1, 4, 8], 20 if quick else 100, tell=lambda how: err.print(how))
    table = Table("how", "ms per step and run", "times as fast", title=f"{model} on {where}")
    for how, seconds in rows:
        table.add_row(how, f"{1000 * seconds:.2f}", f"{rows[0][1] / seconds:.1f}")
    out.print(table)


@bench.command("overhead")
@explained
def bench_overhead(
    model: Annotated[str, typer.Option(help="The model to train.")] = "wrn_28_2",
    device: Device = "auto",
    eager: Annotated[bool, typer.Option("--eager", help="In a plain loop, not captured and compiled.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter blocks.")] = False,
) -> None:
    """What each method costs beside static sparse training: ratios of step times, as in the paper's wall-clock table.

    Example: `regrow bench overhead --model wrn_28_2 --quick`
    """
    import torch

    from regrow.lab.bench import bench_overhead as measure

    where = torch.device(make_options(device, None, None, 0).device)
    blocks, steps = (3, 40) if quick else (25, 100)
    rows = measure(
        model, where, is_captured=not eager and where.type == "cuda", num_steps=steps, num_blocks=blocks, tell=err.print
    )
    columns = ("method", "between rewirings", "every 20 steps", "sd", "ms per rewiring", "over the schedule")
    table = Table(*columns, title=f"{model} on {where}, relative to static")
    for row in rows:
        ratios = (f"{row.quiet:.4f}", f"{row.busy:.4f}", f"{row.deviation:.4f}")
        table.add_row(row.method, *ratios, f"{1000 * row.rewiring:.2f}", f"{row.average:.4f}")
    out.print(table)
