"""The runs of a sweep that are still to be trained, and what became of the others."""

from collections.abc import Sequence
from pathlib import Path

from regrow.lab.config import Config, parent_id
from regrow.lab.run.folder import RunFolder
from regrow.lab.sweep.outcome import Ending, Outcome
from regrow.lab.sweep.plan import make_plan, waiting_branches
from regrow.lab.sweep.progress import Board


class Backlog:
    """Hands out runs, the longest first, each when the one it starts from is finished or has come to its branch."""

    def __init__(self, configs: Sequence[Config], root: Path, board: Board) -> None:
        plan = make_plan(configs, root)
        self.outcome = Outcome(skipped=plan.finished)
        self.root, self.board, self._runs = root, board, plan.runs
        left = {run: plan.runs[run] for run in plan.left}
        self._trunks = waiting_branches(left.values(), root)
        order = sorted(left, key=lambda run: (-left[run].duration, run in self._trunks))
        self._waiting = {run: left[run] for run in order}
        self._unfinished = set(left)
        self._parents = {run: parent_id(config) for run, config in left.items()}
        board.expect(plan)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Config | None:
        """The next run that can start now."""
        ready = next(filter(self._is_ready, self._waiting), None)
        if ready is None:
            return None
        self.board.begin(ready)
        return self._waiting.pop(ready)

    def branches_of(self, trunk: Config) -> tuple[Config, ...]:
        """The runs that wait to be given the state of this one where their ways part."""
        return tuple(config for run, config in self._waiting.items() if self._trunks.get(run) == trunk.id)

    def ended(self, run: str, ending: Ending) -> None:
        """Note how a run ended."""
        self._unfinished.discard(run)
        dropped = []
        if ending.kind != "done":
            dropped = self._drop_dependents(run)
            self._trunks = waiting_branches(self._waiting.values(), self.root)
        if ending.kind == "done":
            self.outcome.done.append(run)
        elif ending.kind == "stopped":
            self.outcome.stopped += [run, *dropped]
        elif ending.kind == "elsewhere":
            self.outcome.elsewhere += [run, *dropped]
        else:
            self.outcome.failed[run] = ending.sentence
            self.outcome.failed |= dict.fromkeys(dropped, f"not started, because {run} failed")
        self.board.end(run, ending, dropped)

    def close(self) -> Outcome:
        """What is still waiting was not begun; what others trained may be finished by now."""
        outcome = self.outcome
        outcome.stopped += self._waiting
        finished = [run for run in outcome.elsewhere if self._folder(run).has_finished(self._runs[run])]
        outcome.skipped += finished
        outcome.elsewhere = [run for run in outcome.elsewhere if run not in finished]
        return outcome

    def _is_ready(self, run: str) -> bool:
        """Whether neither the run it starts from nor its beginning is still to be trained by this sweep."""
        if self._parents[run] in self._unfinished:
            return False
        return self._trunks.get(run) not in self._unfinished or self._folder(run).file("checkpoint.pt").exists()

    def _folder(self, run: str) -> RunFolder:
        return RunFolder(self.root / run)

    def _drop_dependents(self, run: str) -> list[str]:
        """What starts from a run that did not finish, or from such a one, cannot start."""
        dropped = []
        for child in [child for child in self._waiting if self._parents[child] == run]:
            del self._waiting[child]
            dropped += [child, *self._drop_dependents(child)]
        return dropped
