"""What is seen of runs while they train: on a terminal a line for each, elsewhere a plain line every so often."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.live import Live

from regrow.lab.config import Config
from regrow.lab.run.loop import Progress
from regrow.lab.sweep.lines import Line, as_table, in_a_sentence, line_of, line_of_all, short_names
from regrow.lab.sweep.outcome import Ending
from regrow.lab.sweep.plan import Plan
from regrow.lab.sweep.time_left import Going, time_left


class Board:
    """Shows how far runs are, and how long all of them still take once that can be told."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._now, self._began, self._shown = now, now(), now()
        self._names: dict[str, tuple[str, str]] = {}
        self._num_ended = 0
        self._waiting: dict[str, tuple[Config, float]] = {}
        self._going: dict[str, Going] = {}
        self._ended: list[tuple[Config, float]] = []

    def __enter__(self) -> "Board":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            if self._live:
                self._live.stop()

    def expect(self, plan: Plan) -> None:
        """The runs that there are, before any begins."""
        self._names = short_names(list(plan.runs.values()))
        self._num_ended = len(plan.finished)
        self._waiting = {run: (plan.runs[run], share) for run, share in plan.left.items()}

    def begin(self, run: str) -> None:
        """A run has started; until it says more, it is reading its data."""
        self._going[run] = Going(*self._waiting.pop(run), began=self._now())
        self._draw()

    def update(self, run: str, far: Progress) -> None:
        """A run has told how far it is, which it does often."""
        now = self._now()
        self._going[run].hear(far, now)
        elapsed = now - self._began
        pause = 0.25 if self._live else min(max(10.0, elapsed / 20), 300.0)  # the log of a day is still one to be read
        if now - self._shown >= pause:
            self._shown = now
            self._draw()
            if not self._live:
                self.say("; ".join(map(in_a_sentence, self._lines())))

    def end(self, run: str, ending: Ending, dropped: Sequence[str] = ()) -> None:
        """A run has ended: its line goes, and a sentence stays. Those that were to start from it are `dropped`."""
        if going := self._going.pop(run, None):
            self._num_ended += 1
            whole = going.seconds_until(self._now()) if ending.kind == "done" else None
            self._ended += [] if whole is None else [(going.config, whole)]
        for child in dropped:
            self._waiting.pop(child)
        self._draw()
        self.say(f"{run}  {ending}")

    def _draw(self) -> None:
        with suppress(OSError):  # a terminal that is gone keeps no run from being saved
            if self._live:
                self._live.update(as_table(self._lines(), self.console.width), refresh=True)

    def say(self, sentence: str) -> None:
        with suppress(OSError):
            self.console.print(sentence, soft_wrap=True, highlight=False, markup=False)

    def _lines(self) -> list[Line]:
        """One for all runs, where there are several, and one for each that is going."""
        lines = [line_of(one, *self._names[run], self.console.width) for run, one in self._going.items()]
        num_runs, done = len(self._names), self._num_ended + sum(one.share for one in self._going.values())
        if num_runs > 1:
            seconds = time_left(list(self._going.values()), list(self._waiting.values()), self._ended)
            lines.insert(0, line_of_all(self._num_ended, num_runs, done / num_runs, seconds))
        return lines
