"""The command line of the lab: all its commands."""

from typing import Annotated

import typer

from regrow.lab.cli.bench import bench
from regrow.lab.cli.data import data
from regrow.lab.cli.files import describe, export
from regrow.lab.cli.look import methods, report, show
from regrow.lab.cli.overrides import TakesSettings
from regrow.lab.cli.sweep import sweep
from regrow.lab.cli.terminal import explained, out
from regrow.lab.cli.train import train
from regrow.lab.cli.tune import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Dynamic sparse training: train, compare and look at networks that stay sparse from the first step to the "
    "last.\n\nBegin with `regrow train --method DSR --sparsity 0.99 --epochs 5`.",
)


def _tell_version(is_asked: bool) -> None:
    from regrow.core import __version__

    if is_asked:
        out.print(f"regrow {__version__}")
        raise typer.Exit


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
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """What holds for all commands."""
    if imported:
        from regrow.lab.config.imports import bring

        for name in imported:
            bring(name)


app.command(cls=TakesSettings)(train)
app.command(cls=TakesSettings)(sweep)
app.command(cls=TakesSettings)(tune)
for command in (report, show, data, methods, export, describe):
    app.command()(command)
app.add_typer(bench, name="bench")
