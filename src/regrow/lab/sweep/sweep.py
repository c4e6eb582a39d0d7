"""Training many runs, or one: in this process, in lanes on a GPU, in processes on a CPU, or on a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

from regrow.lab.config import Config
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, train
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.cluster import train_on_ray
from regrow.lab.sweep.lanes import train_in_lanes
from regrow.lab.sweep.outcome import Ending, Outcome, how_it_ends, result_in
from regrow.lab.sweep.plan import make_plan
from regrow.lab.sweep.processes import train_in_processes
from regrow.lab.sweep.progress import Board
from regrow.lab.sweep.signals import stop_on_signals


def sweep(
    configs: Sequence[Config],
    root: Path,
    options: Options,
    at_once: int | None,
    board: Board,
    ray: ModuleType | None = None,
) -> Outcome:
    """Train all runs that are not finished, some at a time, here or on a Ray cluster; one may fail without the rest."""
    backlog = Backlog(configs, root, board)
    side_by_side: Callable[..., None] = train_in_processes
    if ray:
        side_by_side = partial(train_on_ray, ray=ray)
    elif options.device.startswith("cuda"):
        side_by_side = train_in_lanes
    with stop_on_signals() as should_stop:
        side_by_side(backlog, options, at_once, should_stop)
    return backlog.close()


def train_here(config: Config, root: Path, options: Options, board: Board) -> Ending:
    """Train a run, and before it those it starts from, in this process; tells how the last that was tried ended."""
    plan = make_plan([config], root)
    board.expect(plan)
    for one in plan.runs.values():
        if one.id in plan.left:
            ending = _train_here(one, root, options, board)
        else:
            ending = result_in(RunFolder(root / one.id), "already done")
        board.end(one.id, ending)
        if ending.kind != "done":
            break
    return ending


def _train_here(config: Config, root: Path, options: Options, board: Board) -> Ending:
    board.begin(config.id)
    is_alone = not options.ranks.is_joined  # torchrun hands on what may have reached all of them already
    with stop_on_signals(second_counts=is_alone) as should_stop:
        told = replace(options, on_progress=partial(board.update, config.id), should_stop=should_stop)
        return how_it_ends(partial(train, config, root, told), RunFolder(root / config.id))
