"""How runs end: done, stopped or failed, and that in a sentence; and how all of a sweep do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from regrow.lab.config import Config
from regrow.lab.data import FetchError
from regrow.lab.report.formats import duration
from regrow.lab.run.folder import BadRun, InUse, RunFolder
from regrow.lab.run.loop import Stopped
from regrow.lab.run.state import NotFinite

EXPECTED = (Stopped, ValueError, TypeError, NotFinite, FetchError, OSError)
"""What a user asked for or can do something about: shown as a sentence, not as a traceback."""

EXIT_CODES = {"done": 0, "failed": 1, "elsewhere": 75, "stopped": 130}
"""0 says that all is finished; 75, as in sysexits.h, that nothing went wrong and it will be so later."""


@dataclass(frozen=True)
class Ending:
    """What became of a run that was to be trained."""

    kind: Literal["done", "stopped", "failed", "elsewhere"]
    sentence: str

    def __str__(self) -> str:
        return f"failed: {self.sentence}" if self.kind == "failed" else self.sentence


@dataclass
class Outcome:
    """What became of the runs of a sweep, by id; `failed` says why.

    `elsewhere`: another process is training them, or the runs that they start from.
    """

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """How the whole of it ended, the worst of all."""
        if self.failed:
            return "failed"
        return "stopped" if self.stopped else "elsewhere" if self.elsewhere else "done"


def how_it_ends(act: Callable[[], object], folder: RunFolder) -> Ending:
    """Train, and see."""
    try:
        act()
    except EXPECTED as error:
        return ended_by(error)
    return result_in(folder)


def ended_by(error: Exception) -> Ending:
    if isinstance(error, InUse):
        return Ending("elsewhere", str(error))
    return Ending("stopped" if isinstance(error, Stopped) else "failed", str(error))


def result_in(folder: RunFolder, how: str = "done") -> Ending:
    """Of a run that has come to its end, now or before."""
    try:
        summary, config = folder.summary(), folder.config()
        assert summary is not None
        score, still = config.data.score, _if_it_never_rewired(config, summary)
        return Ending("done", f"{how}: {score.text(summary[score.key])} in {duration(summary['seconds'])}{still}")
    except BadRun as error:
        return Ending("failed", str(error))


def _if_it_never_rewired(config: Config, summary: Mapping[str, Any]) -> str:
    """What is compared with others as a method that rewires, and was shorter than its first period, is static."""
    num_steps = int(summary["steps"])
    method = config.make_method(max(1, num_steps // int(summary["epochs"])))
    if not method.rewires or any(map(method.is_due, range(1, num_steps + 1))):
        return ""
    return f"; {config.method_name} was not due to rewire in its {num_steps:,} steps, see method.period"
