"""The command that trains one run, or says what it would."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regrow.lab.cli.options import (
    Compile,
    Device,
    Epochs,
    Precision,
    Runs,
    SaveEvery,
    Store,
    Threads,
    choose_device,
    make_options,
)
from regrow.lab.cli.overrides import Overrides
from regrow.lab.cli.sweep import list_runs
from regrow.lab.cli.terminal import err, explained, out

_MODELS = (
    "lenet_300_100, wrn_DEPTH_WIDTH, resnet_50, resnet_50_small, vgg_19; vit or gpt, or vit_DEPTHxWIDTH and "
    "gpt_DEPTHxWIDTH."
)


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show all settings, which are the paper's, and what is left to do.")
    ] = False,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    threads: Threads = None,
    compile_: Compile = None,
    save_every: SaveEvery = 30.0,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: a part of every weight in each process, not all in each.")
    ] = False,
) -> None:
    """Train one run, with the paper's settings for its network and method where nothing else is said.

    Interrupted, it goes on where it was when the same command is given again; finished, it is left alone. Several
    processes train it together under torchrun.

    Example: `regrow train --method DSR --sparsity 0.99 --epochs 20 method.prune=300`

    Example: `torchrun --nproc-per-node 2 -m regrow train --method DSR --sparsity 0.99 --epochs 20`
    """
    from regrow.lab.config import make_config
    from regrow.lab.config.experiment import parse_override, with_pairs
    from regrow.lab.run.folder import bring_again
    from regrow.lab.run.ranks import leave, meet
    from regrow.lab.sweep.outcome import EXIT_CODES
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import train_here

    named: dict[str, Any] = {"model": model, "data": data, "seed": seed, "epochs": epochs, "precision": precision}
    named |= {"storage": storage, "method.name": method, "method.sparsity": sparsity}
    pairs = [(key, value) for key, value in named.items() if value is not None]
    settings = with_pairs({}, [*pairs, *map(parse_override, overrides or [])])
    ranks, device = meet(choose_device(device), compile_, shards=shard)
    bring_again(runs)
    config = ranks.together(lambda: make_config(settings))
    options = replace(make_options(device, threads, compile_, save_every), ranks=ranks)
    if dry_run and ranks.is_first:
        from regrow.lab.report.show import show_config

        out.print(show_config(config), "", sep="\n")
        list_runs([config], runs, options, at_once=1)
    if dry_run:
        leave()
        return
    with Board(err if ranks.is_first else Console(quiet=True)) as board:
        ending = train_here(config, runs, options, board)
    if ending.kind == "failed" and not ranks.is_first:
        err.print(f"rank {ranks.rank} {ending}", soft_wrap=True, markup=False)
    if ending.kind != "done":
        raise typer.Exit(EXIT_CODES[ending.kind])
    if ranks.is_first:
        out.print(str(runs / config.id), soft_wrap=True, markup=False)
    leave()
