"""Progress bars, one line for every run that is being trained."""

from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regrow.lab.run.loop import Progress as HowFar


class Board:
    """Shows runs as they go; on a terminal with moving bars, elsewhere one line when a run ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Board":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._bars.stop()

    def begin(self, run: str) -> None:
        """A run has started; until it says more, it is reading its data."""
        self._tasks[run] = self._bars.add_task(run, total=None, note="loading")

    def update(self, run: str, far: HowFar) -> None:
        """A run has told how far it is."""
        note = f"epoch {min(far.epoch + 1, far.num_epochs)}/{far.num_epochs}  sparsity {far.sparsity:.3f}"
        if far.loss is not None:
            note += f"  loss {far.loss:.4f}  {far.score}"
        self._bars.update(self._tasks[run], completed=far.step, total=far.num_steps, note=note)

    def end(self, run: str, how: str) -> None:
        """A run has ended: its line goes, and one sentence stays."""
        if run in self._tasks:
            self._bars.remove_task(self._tasks.pop(run))
        with suppress(OSError):  # a terminal that is gone keeps no run from being saved
            self.console.print(f"{run}  {how}", soft_wrap=True, highlight=False, markup=False)
