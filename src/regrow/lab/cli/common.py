"""What the commands share: consoles, options, and errors as sentences."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.run.loop import Options

P = ParamSpec("P")
R = TypeVar("R")

out, err = Console(highlight=False), Console(stderr=True, highlight=False)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Further settings as key=value, dotted, e.g. `method.prune=300 optimizer.momentum=0.8`."),
]
Runs = Annotated[Path, typer.Option(help="The folder that holds the folders of all runs.")]
Epochs = Annotated[int | None, typer.Option(help="Nominal length; schedules stretch or shrink with it.")]
Device = Annotated[str, typer.Option(help="`cpu`, `cuda`, or `auto`: a GPU where there is one.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads per run on a CPU; torch's own choice by default.")
]
SaveEvery = Annotated[float, typer.Option(help="Seconds between checkpoints.")]
Compile = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="torch.compile the network; by default on a GPU.")
]
Store = Annotated[str | None, typer.Option("--storage", help="`dense`, or `packed`: memory for active weights only.")]
Precision = Annotated[str | None, typer.Option(help="`float32` or `bfloat16` (autocast).")]
Experiment = Annotated[Path, typer.Argument(help="A TOML file; see those under experiments/.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time on a CPU, each in a process.")]
Lanes = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time on a GPU, in one process; by default what fits, up to 8.")
]
Only = Annotated[list[str] | None, typer.Option(help="Only runs whose id contains this; may be repeated.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the runs, what is left to do and how long it takes; train none.")
]


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Show what a user can do something about as a sentence, and leave with exit code 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from regrow.lab.sweep.outcome import EXPECTED

        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            _fail(str(error))
        except RecursionError:
            _fail("these settings are nested too deeply; no setting is more than a table in a table")

    return run


def _fail(message: str, code: int = 1) -> NoReturn:
    err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)


class TakesSettings(TyperCommand):
    """A command that is told settings as key=value, and says so where one is given as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for option, following in zip(args, [*args[1:], "--"], strict=True):
            name, equals, value = option.partition("=")
            if name.startswith("--") and name not in known and (places := _places_of(name)):
                value = value if equals else "..." if following.startswith("--") else following
                _fail(f"there is no option {name}; say {' or '.join(f'{place}={value}' for place in places)}", 2)
        return super().parse_args(ctx, args)


def _places_of(option: str) -> list[str]:
    from dataclasses import fields

    from regrow.lab.config import Config
    from regrow.lab.config.places import places_of

    name = option.removeprefix("--").replace("-", "_")
    is_at_the_top = name == "sparsity" or name in {field.name for field in fields(Config)}
    return [name] if is_at_the_top else places_of(name)


def given_on_top(
    overrides: list[str] | None, epochs: int | None, precision: str | None, storage: str | None
) -> list[str]:
    """What is said on top of an experiment's file, as key=value."""
    named = {"epochs": epochs, "precision": precision, "storage": storage}
    return [*(f"{key}={value}" for key, value in named.items() if value is not None), *(overrides or [])]


def check_alone(what: str) -> None:
    """Refuse to be one of several processes that torchrun starts."""
    from regrow.lab.run.ranks import are_started_together

    if are_started_together():
        raise ValueError(f"{what} is one process, which starts others itself; leave torchrun to `regrow train`")


def share_threads(threads: int | None, jobs: int) -> int | None:
    """Of each run's own where nobody said: those there are, shared among runs side by side."""
    return threads or (max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None)


def choose_device(device: str) -> str:
    """What `auto` is here; one that is not here is refused."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        is_known = torch.device(device).type in ("cpu", "cuda")
    except RuntimeError:
        is_known = False
    if not is_known:
        raise ValueError(f"there is no device {device!r}; say cpu, cuda, cuda:1, or auto")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; leave --device out or say --device cpu")
    return device


def make_options(
    device: str, threads: int | None, compiles: bool | None, save_every: float, *, is_here: bool = True
) -> "Options":
    from regrow.lab.run.loop import Options

    device = choose_device(device) if is_here else device
    compiles = device.startswith("cuda") if compiles is None else compiles
    return Options(device=device, threads=threads, compiles=compiles, save_every=save_every)
