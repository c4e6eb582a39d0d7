"""The command that searches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

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
from regrow.lab.cli.sweep import list_runs, tell, those_meant
from regrow.lab.cli.terminal import err, explained, out

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.lab.sweep.outcome import Outcome
    from regrow.lab.sweep.tune import Found


@explained
def tune(
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
) -> None:
    """Search for each run of an experiment the best of some settings, and train what did best.

    The file says in a `tune` table what is searched: `tune.learning_rate.peak = [0.001, 0.002, 0.004]`. Each method at
    each density gets as many trials, with its first seed, on a part held out of what is trained on; the test is not
    found at. What did best is then trained on everything, with each seed, and tested once. Like a sweep it goes on
    where it was when the same command is given again.

    Example: `regrow tune experiments/lenet_tune.toml --epochs 10 --jobs 2 sparsity=0.95`
    """
    from regrow.lab.config.search import read_searches
    from regrow.lab.report.formats import several
    from regrow.lab.run.folder import bring_again
    from regrow.lab.run.ranks import check_alone
    from regrow.lab.sweep.progress import Board
    from regrow.lab.sweep.sweep import sweep
    from regrow.lab.sweep.tune import look_at, only_judged, trials_of

    check_alone("a search")
    bring_again(runs)
    given = given_on_top(overrides, epochs, precision, storage)
    all_of_them = read_searches(experiment, given)
    searches = those_meant({search.choices[0].configs[0].id: search for search in all_of_them}, only)
    options = make_options(choose_device(device), share_threads(threads, jobs), compile_, save_every)
    at_once = how_many_at_once(options, jobs, lanes)
    trials = trials_of(searches)
    if dry_run:
        tried = {choice.trial.id: str(choice) for search in searches for choice in search.choices}
        list_runs(trials, runs, options, at_once, tried)
        num_left = sum(len(search.choices[0].configs) for search in searches)
        best = f"the best of each {len(searches[0].choices)}"
        out.print(f"then {best}, on everything: {several(num_left, 'run')}")
        return
    with Board(err) as board:
        outcome = sweep(trials, runs, replace(options, judged_only=only_judged(trials)), at_once, board)
    found = [look_at(search, runs) for search in searches]
    _show(found)
    _leave_unless_searched(found, outcome)
    chosen = [config for own in found if own.best for config in own.best[0].configs]
    with Board(err) as board:
        outcome = sweep(chosen, runs, options, at_once, board)
    tell(chosen, runs, outcome)
    if lacking := [own for own in found if own.best is None]:
        raise ValueError(
            f"of {several(len(lacking), 'search')} no trial came to an end, so there is no best; search smaller values"
        )


def _show(found: "Sequence[Found]") -> None:
    """What was searched, and where the best lies."""
    from regrow.lab.report.labels import family

    score = found[0].config.data.score
    title = "searched on what was held out"
    table = Table("method", "sparsity", "tried", "best", score.title, "", title=title, title_justify="left", box=SIMPLE)
    for own in found:
        best, value = (str(own.best[0]), score.number(own.best[1])) if own.best else ("none finished", "")
        sparsity = f"{own.config.sparsity:g}" if "sparsity" in own.config.method else ""
        row = (family(own.config), sparsity, f"{own.num_tried} of {len(own.scores)}", best, value)
        table.add_row(*row, "at an edge" if own.at_edge else "")
    out.print(table)
    if any(own.at_edge for own in found):
        err.print("better values may lie beyond an edge of what was tried; search there, too")


def _leave_unless_searched(found: "Sequence[Found]", outcome: "Outcome") -> None:
    """A trial whose loss ran off is an answer; one that was stopped is none, nor are searches without any."""
    from regrow.lab.sweep.outcome import EXIT_CODES

    for run, why in outcome.failed.items():
        err.print(f"[yellow]not finished[/yellow] {run}: {escape(why)}", soft_wrap=True)
    if outcome.stopped or outcome.elsewhere:
        err.print("the search is not over; the same command goes on with it")
        raise typer.Exit(EXIT_CODES["stopped" if outcome.stopped else "elsewhere"])
    if all(own.best is None for own in found):
        raise ValueError("no trial came to an end, so there is no best; search smaller values")
