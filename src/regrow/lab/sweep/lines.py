"""How runs in flight are written down: as rows with bars that fit a terminal, and in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regrow.lab.config import Config
from regrow.lab.report.formats import clock
from regrow.lab.report.labels import label, shared_departures
from regrow.lab.sweep.time_left import Going

_WIDEST = 110
_WIDE_ENOUGH_FOR_LOSSES = 100
_SHORTEST_BAR = 8
_USUAL = ("epoch 12/20", "98.66 %", "12:34 left")
"""Room that is kept, so that bars keep their places."""


@dataclass(frozen=True)
class Line:
    """`name` gives way where there is little room, what it is followed by does not."""

    name: str
    which: str
    share: float
    told: Sequence[str]


def line_of_all(num_ended: int, num_runs: int, share: float, seconds: float | None) -> Line:
    """A whole sweep's."""
    return Line(f"{num_ended} of {num_runs} runs", "", share, ["", "", in_words(seconds)])


def line_of(one: Going, name: str, which: str, width: int = 0) -> Line:
    """A run's, with its loss where there is room."""
    told = [how_far(one), _score(one), in_words(one.seconds_left)]
    loss = f"loss {one.last[1].loss:.4f}" if one.last and one.last[1].loss is not None else ""
    if loss and width >= _WIDE_ENOUGH_FOR_LOSSES:
        told[0] += f"  {loss}"
    return Line(name, which, one.share, told)


def as_table(lines: Sequence[Line], width: int) -> Table:
    """A row for each, with a bar that takes what room the texts leave."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    which = max((len(line.which) for line in lines), default=0)
    told = [max(map(len, column)) for column in zip(_USUAL, *(line.told for line in lines), strict=True)]
    room = min(width, _WIDEST) - sum([which, *told]) - len(told) - 2
    name = max(min(max((len(line.name) for line in lines), default=0), room - _SHORTEST_BAR), 0)
    for size in (name, which, max(room - name, 0)):
        table.add_column(width=size, no_wrap=True, overflow="ellipsis")
    for size in told:
        table.add_column(width=size, no_wrap=True, justify="right")
    for line in lines:
        table.add_row(Text(line.name), line.which, ProgressBar(1, line.share), *map(Text, line.told))
    return table


def in_a_sentence(line: Line) -> str:
    """
    >>> in_a_sentence(Line("RigL", "0.99 s0", 0.6, ["epoch 12/20", "98.66 %", "0:12 left"]))
    'RigL 0.99 s0: epoch 12/20, 98.66 %, 0:12 left'
    >>> in_a_sentence(line_of_all(9, 14, share=0.7, seconds=40))
    '9 of 14 runs, 0:40 left'
    """
    told = ", ".join(filter(None, line.told))
    return f"{line.name} {line.which}: {told}" if line.which else ", ".join(filter(None, [line.name, told]))


def short_names(configs: Sequence[Config]) -> dict[str, tuple[str, str]]:
    """What runs are called where there is little room, in two parts; what all of them have alike goes unsaid."""
    unsaid = shared_departures(configs)
    various = [part for part in ("model", "data") if len({str(getattr(config, part)) for config in configs}) > 1]

    def name(config: Config) -> str:
        return " ".join([*(str(getattr(config, part)) for part in various), label(config, without=unsaid)])

    def which(config: Config) -> str:
        return f"{config.sparsity:g} s{config.seed}" if "sparsity" in config.method else f"s{config.seed}"

    return {config.id: (name(config), which(config)) for config in configs}


def how_far(one: Going) -> str:
    """In epochs, or in steps where its length is told in steps."""
    if one.last is None:
        return "loading"
    far = one.last[1]
    if one.config.max_steps is None:
        return f"epoch {min(far.epoch + 1, far.num_epochs)}/{far.num_epochs}"
    return f"step {far.step:,}/{far.num_steps:,}"


def in_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{clock(seconds)} left"


def _score(one: Going) -> str:
    score = one.last[1].score if one.last else None
    return "" if score is None else one.config.data.score.text(score)
