"""Runs side by side on a GPU: each a lane with a stream of its own, all in one process, taking turns step by step."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from regrow.lab.backlog import KNOWN_TROUBLE, Backlog, describe_result
from regrow.lab.config import Config
from regrow.lab.progress import Board
from regrow.lab.runs import RunFolder
from regrow.lab.train import Options, Stopped, on_own_stream, train_by_steps


def train_in_lanes(
    backlog: Backlog, root: Path, options: Options, num_lanes: int, board: Board, should_stop: Callable[[], bool]
) -> None:
    """Train what is in the backlog, `num_lanes` runs at a time; one that fails ends alone."""
    lanes: dict[str, Iterator[None]] = {}
    while lanes or (backlog and not should_stop()):
        while len(lanes) < num_lanes and not should_stop() and (config := backlog.take()):
            lanes[config.id] = _open(config, root, options, board, should_stop)
        for run, lane in list(lanes.items()):
            how = _move(lane, RunFolder(root / run))
            if how is not None:
                del lanes[run]
                backlog.ended(run, how)


def _open(
    config: Config, root: Path, options: Options, board: Board, should_stop: Callable[[], bool]
) -> Iterator[None]:
    told = replace(options, on_progress=partial(board.update, config.id), should_stop=should_stop)
    return on_own_stream(train_by_steps(config, root, told), options.device)


def _move(lane: Iterator[None], folder: RunFolder) -> str | None:
    """Take a step of a lane; how its run ended, if it did."""
    try:
        next(lane)
    except StopIteration:
        return describe_result(folder)
    except (Stopped, *KNOWN_TROUBLE) as error:
        return str(error)
    except Exception as error:  # whatever it is, it is no trouble of the other lanes
        return "".join(traceback.format_exception(error))
    return None
