"""The commands that train, or say what they would."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from regrow.lab.cli.common import (
    Compile,
    Device,
    DryRun,
    Epochs,
    Experiment,
    Jobs,
    Lanes,
    Only,
    Overrides,
    Precision,
    Runs,
    SaveEvery,
    Store,
    Threads,
    check_alone,
    choose_device,
    err,
    explained,
    given_on_top,
    make_options,
    out,
    share_threads,
)

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.config import Config
    from regrow.lab.run.loop import Options
    from regrow.lab.sweep.outcome import Outcome

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


@explained
def sweep(
    experiment: Experiment,
    overrides: Overrides = None,
    epochs: Epochs = None,
    precision: Precision = None,
    storage: Store = None,
    jobs: Jobs = 1,
    lanes: Lanes = None,
    only: Only = None,
    dry_run: DryRun = False,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    threads: Threads = None,
    compile_: Compile = None,
    save_every: SaveEvery = 30.0,
    on: Annotated[
        str | None,
        typer.Option(metavar="RAY", help="`ray`, the Ray cluster that is there; or `ray://HOST:PORT`, one elsewhere."),
    ] = None,
) -> None:
    """Train all runs of an experiment; those that are finished are skipped, those that were interrupted go on.

    A value given here replaces the one in the file, in grids too; a list replaces a grid's list.

    The exit code is 0 when all runs are finished, 1 when one failed, 75 when another process is training some, 130 when
    it was stopped.

    Example: `regrow sweep experiments/lenet_mnist.toml --epochs 20 --jobs 2 seed=0 "sparsity=[0.99, 0.9]"`
    """
    from regrow.lab.config.experiment import read_experiment
    from regrow.lab.run.folder import bring_again
    from regrow.lab.sweep.cluster import connected, device_of_cluster
    from regrow.lab.sweep.lanes import MOST_LANES
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import sweep as train_all

    check_alone("a sweep")
    given = given_on_top(overrides, epochs, precision, storage)
    bring_again(runs)
    configs = [c for c in read_experiment(experiment, given) if not only or any(part in c.id for part in only)]
    if not configs:
        raise ValueError(f"none of the runs of {experiment} has {' or '.join(map(repr, only or []))} in its id")
    if dry_run:
        options = make_options(device, None, compile_, save_every)
        list_runs(configs, runs, options, (lanes if options.device.startswith("cuda") else jobs) or MOST_LANES)
        return
    with connected(on) if on else nullcontext() as ray:
        device = device_of_cluster(ray, device) if ray else device
        options = make_options(device, share_threads(threads, jobs), compile_, save_every, is_here=not ray)
        at_once = lanes if options.device.startswith("cuda") else jobs
        with Board(err) as board:
            outcome = train_all(configs, runs, options, at_once, board, ray)
    tell(configs, runs, outcome)


def list_runs(configs: "Sequence[Config]", root: Path, options: "Options", at_once: int) -> None:
    """The runs, how long each trains, whether that was done; then how many they are, and how long it takes."""
    import torch

    from regrow.lab.run.provenance import device_name
    from regrow.lab.sweep.plan import make_plan
    from regrow.lab.sweep.time_left import Pace, estimate, finished_under

    plan = make_plan(configs, root)
    longest = max(map(len, plan.runs))
    for run, config in plan.runs.items():
        state = "done" if run not in plan.left else "to do" if plan.left[run] == 1 else "begun"
        out.print(f"{run:{longest}}  {config.length:>11}  {state}", soft_wrap=True, markup=False)
    pace = Pace(finished_under(root, device_name(torch.device(options.device))))
    out.print(estimate(plan, pace, at_once), soft_wrap=True, markup=False)


def tell(configs: "Sequence[Config]", root: Path, outcome: "Outcome") -> None:
    """The table of what is finished, then what is not."""
    from regrow.lab.report.formats import several
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
        err.print(f"{several(len(outcome.skipped), 'run')} already done")
    for run, why in outcome.failed.items():
        err.print(f"[red]failed[/red] {run}: {escape(why)}", soft_wrap=True)
    if outcome.stopped:
        err.print(f"{several(len(outcome.stopped), 'run')} stopped or not begun; the same command goes on")
    if outcome.elsewhere:
        err.print(
            f"{several(len(outcome.elsewhere), 'run')} in training by another process, or to start from such a one; "
            "the same command goes on when that has ended",
            soft_wrap=True,
        )
    if outcome.kind != "done":
        raise typer.Exit(EXIT_CODES[outcome.kind])
