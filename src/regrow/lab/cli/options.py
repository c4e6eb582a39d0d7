"""Options that several commands have, and what is made of them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.run.loop import Options

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
    number = torch.device(device).index or 0
    if device.startswith("cuda") and number >= (count := torch.cuda.device_count()):
        raise ValueError(f"there is no {device} here, but cuda:0 to cuda:{count - 1}")
    return device


def how_many_at_once(options: "Options", jobs: int, lanes: int | None) -> int | None:
    """Lanes are for a GPU, processes for a CPU."""
    return lanes if options.device.startswith("cuda") else jobs


def make_options(device: str, threads: int | None, compiles: bool | None, save_every: float) -> "Options":
    """How to train on a device that was chosen; on a GPU, if nobody said, compiled."""
    from regrow.lab.run.loop import Options

    compiles = device.startswith("cuda") if compiles is None else compiles
    return Options(device=device, threads=threads, compiles=compiles, save_every=save_every)
