"""Runs side by side on a GPU: each a lane with a stream of its own, all in one process, taking turns step by step."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from regrow.lab.config import Config
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, on_own_stream, train_by_steps
from regrow.lab.sweep.backlog import Backlog
from regrow.lab.sweep.outcome import EXPECTED, Ending, ended_by, result_in

MOST_LANES = 8  # more gained nothing for a network of the size of WRN-28-2
_ROUNDS_TO_SETTLE = 20
_SHARE_TO_FILL = 0.8


def train_in_lanes(backlog: Backlog, options: Options, num_lanes: int | None, should_stop: Callable[[], bool]) -> None:
    """Train what is in the backlog, `num_lanes` runs at a time or as many as fit; one that fails ends alone."""
    lanes: dict[str, Iterator[None]] = {}
    room = _Room(num_lanes, options.device)
    while lanes or (backlog and not should_stop()):
        while len(lanes) < room.num_lanes and not should_stop() and (config := backlog.take()):
            lanes[config.id] = _open(config, backlog, replace(options, should_stop=should_stop))
        for run, lane in list(lanes.items()):
            ending = _move(lane, RunFolder(backlog.root / run))
            if ending is not None:
                del lanes[run]
                backlog.ended(run, ending)
        room.look(is_used=bool(lanes))


class _Room:
    """How many lanes there are to be: where nobody said so, as many as fit beside the first one."""

    def __init__(self, num_lanes: int | None, device: str) -> None:
        self.num_lanes = num_lanes or 1
        self._is_open = num_lanes is None and device.startswith("cuda")
        self._device = device
        self._rounds = 0
        self._free_before = self._free()

    def look(self, is_used: bool) -> None:
        """Once the first lane has taken all the memory that it will take, see how often that fits."""
        self._rounds = self._rounds + 1 if is_used else 0  # one that failed tells nothing
        if self._is_open and self._rounds == _ROUNDS_TO_SETTLE:
            left = self._free()
            taken = max(self._free_before - left, 1)
            self.num_lanes = min(1 + int(_SHARE_TO_FILL * left / taken), MOST_LANES)

    def _free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0] if self._is_open else 0


def _open(config: Config, backlog: Backlog, options: Options) -> Iterator[None]:
    tell = partial(backlog.board.update, config.id)
    own = replace(options, branches=backlog.branches_of(config), on_progress=tell)
    return on_own_stream(train_by_steps(config, backlog.root, own), options.device)


def _move(lane: Iterator[None], folder: RunFolder) -> Ending | None:
    """Take a step of a lane; how its run ended, if it did."""
    try:
        next(lane)
    except StopIteration:
        return result_in(folder)
    except EXPECTED as error:
        return ended_by(error)
    except Exception as error:  # whatever it is, it is no trouble of the other lanes
        return Ending("failed", "".join(traceback.format_exception(error)))
    return None
