"""The commands that look: at runs, and at methods."""

import inspect
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from regrow.lab.cli.options import Runs
from regrow.lab.cli.terminal import err, explained, out

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.methods.method import Method


@explained
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with run folders in or below them.")],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("report"),
) -> None:
    """Write a page with figures and tables about finished runs, beside the published numbers.

    Example: `regrow report runs --out report`, then open report/index.html in a browser.
    """
    from regrow.lab.report.formats import several
    from regrow.lab.report.write import write_report

    report = write_report(runs, out_folder)
    for problem in report.problems:
        err.print(f"[yellow]left out:[/yellow] {escape(problem)}", soft_wrap=True)
    if report.num_unfinished:
        err.print(f"not in the tables: {several(report.num_unfinished, 'unfinished run')}")
    out.print(str(report.page), soft_wrap=True, markup=False)


@explained
def show(
    run: Annotated[str, typer.Argument(help="A run: its folder, its id, or a part of the id that no other run has.")],
    runs: Runs = Path("runs"),
) -> None:
    """Show one run in the terminal: settings, result, layers, and how their sparsities emerged.

    Example: `regrow show 90f0e65b`

    Example: `regrow show runs/lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b`
    """
    from regrow.lab.report.show import show_run
    from regrow.lab.run.folder import find_run, read_run

    out.print(show_run(read_run(find_run(run, runs))))


@explained
def methods(name: Annotated[str | None, typer.Argument(help="Tell all about this one.")] = None) -> None:
    """List the methods, or tell all about one: its paper, its algorithm, its fields.

    Example: `regrow methods DSR`
    """
    from regrow.core.names import suggest
    from regrow.methods.method import METHODS

    if name is None:
        out.print(_all_methods())
        out.print(
            "For a fair comparison give all the same distribution and until. `regrow methods RigL` tells all of one."
        )
        return
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; {suggest(name, METHODS)}")
    for paragraph in _about(METHODS[name]).split("\n\n"):
        out.print(" ".join(paragraph.split()), "", markup=False, sep="\n")
    out.print(_fields_table(METHODS[name]))
    out.print(
        "In the lab points in time such as `until` are epochs, and a network of the paper has the paper's settings: "
        f"`regrow train --method {name} --sparsity 0.9 --dry-run` shows them."
    )


def _all_methods() -> Table:
    """With the defaults in which methods differ, where they have an effect."""
    from regrow.methods.method import METHODS

    table = Table("method", "distribution", "period", "until", "what it is", box=SIMPLE_HEAD, pad_edge=False)
    for name, method in METHODS.items():
        default = {field.name: _default(field) for field in fields(method)}
        times = [default["period"], default["until"]] if method.rewires else ["", ""]
        what = _about(method).split("\n\n")[0].removeprefix(f"{name}: ")
        table.add_row(name, default["distribution"], *times, Text(" ".join(what.split())))
    return table


def _fields_table(method: "type[Method]") -> Table:
    from regrow.methods.about_fields import about_fields

    table, told = Table("field", "default", "what it is", box=SIMPLE_HEAD, pad_edge=False), about_fields(method)
    for field in fields(method):
        table.add_row(field.name, _default(field), Text(told.get(field.name, "")))
    return table


def _about(method: "type[Method]") -> str:
    """What its file says of it."""
    return inspect.getdoc(sys.modules[method.__module__]) or inspect.getdoc(method) or ""


def _default(field: Any) -> str:
    if field.default is MISSING:
        return ""
    return f"{field.default:,}" if type(field.default) is int else str(field.default)
