"""The command that trains many runs, and how runs are listed before and after."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape

from regrow.lab.cli.options import (
    Compile,
    Device,
    DryRun,
    Epochs,
    Experiment,
    Jobs,
    Lanes,
    Only,
    Precision,
    Runs,
    SaveEvery,
    Store,
    Threads,
    choose_device,
    how_many_at_once,
    make_options,
    share_threads,
)
from regrow.lab.cli.overrides import Overrides, given_on_top
from regrow.lab.cli.terminal import err, explained, out

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.config import Config
    from regrow.lab.run.loop import Options
    from regrow.lab.sweep.outcome import Outcome

T = TypeVar("T")


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
    from regrow.lab.run.ranks import check_alone
    from regrow.lab.sweep.cluster import connected, device_of_cluster
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import sweep as train_all

    check_alone("a sweep")
    bring_again(runs)
    given = given_on_top(overrides, epochs, precision, storage)
    configs = those_meant({config.id: config for config in read_experiment(experiment, given)}, only)
    if dry_run:
        options = make_options(choose_device(device), None, compile_, save_every)
        list_runs(configs, runs, options, how_many_at_once(options, jobs, lanes))
        return
    with connected(on) if on else nullcontext() as ray:
        device = device_of_cluster(ray, device) if ray else choose_device(device)
        options = make_options(device, share_threads(threads, jobs), compile_, save_every)
        with Board(err) as board:
            outcome = train_all(configs, runs, options, how_many_at_once(options, jobs, lanes), board, ray)
    tell(configs, runs, outcome)


def those_meant(by_id: Mapping[str, T], only: list[str] | None) -> list[T]:
    """What is said by a part of its id; all where nothing is."""
    meant = [one for run, one in by_id.items() if not only or any(part in run for part in only)]
    if not meant:
        raise ValueError(f"none of the runs of this experiment has {' or '.join(map(repr, only or []))} in its id")
    return meant


def list_runs(
    configs: "Sequence[Config]",
    root: Path,
    options: "Options",
    at_once: int | None,
    remarks: "Mapping[str, str] | None" = None,
) -> None:
    """The runs, how long each trains, whether that was done; then how many they are, and how long it takes."""
    import torch

    from regrow.lab.run.provenance import device_name
    from regrow.lab.sweep.lanes import MOST_LANES
    from regrow.lab.sweep.plan import make_plan
    from regrow.lab.sweep.time_left import Pace, estimate, finished_under

    plan = make_plan(configs, root)
    longest = max(map(len, plan.runs))
    for run, config in plan.runs.items():
        state = "done" if run not in plan.left else "to do" if plan.left[run] == 1 else "begun"
        line = f"{run:{longest}}  {config.length:>11}  {state:5}  {(remarks or {}).get(run, '')}"
        out.print(line.rstrip(), soft_wrap=True, markup=False)
    pace = Pace(finished_under(root, device_name(torch.device(options.device))))
    out.print(estimate(plan, pace, at_once or MOST_LANES), soft_wrap=True, markup=False)


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
