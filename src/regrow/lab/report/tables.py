"""Tables of results, for the page and for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from regrow.lab.data import ACCURACY
from regrow.lab.report.formats import clock, duration, short_count, signed
from regrow.lab.report.result import Result
from regrow.lab.report.results import Collection, Experiment, Group
from regrow.lab.report.story import common

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by (None comes last), and a remark in small print."""

    text: str
    value: Value
    remark: str = ""
    family: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """`key` names it in links that sort by it."""

    key: str
    title: str
    is_number: bool = True


@dataclass(frozen=True)
class Grid:
    """A table as text and values, for the page; a row of its foot is a name and a cell as wide as the rest."""

    columns: Sequence[Column]
    rows: list[list[Cell]]
    foot: Sequence[list[Cell]] = ()


def method_cell(group: Group) -> Cell:
    return Cell(group.label, group.label, family=group.family)


def _sparsity(group: Group) -> Cell:
    return Cell("" if group.sparsity is None else f"{group.sparsity:g}", group.sparsity)


def _score(group: Group) -> Cell:
    return Cell(group.score.spread(group.mean, group.sd), group.mean)


def _chosen(group: Group) -> Cell:
    return Cell(group.chosen, group.chosen)


def _reference(group: Group) -> Cell:
    reference = group.reference
    if reference is None:
        return Cell("", None)
    remark = "length differs" if group.has_other_length else ""
    return Cell(group.score.spread(reference.mean, reference.sd), reference.mean, remark)


def _difference(group: Group) -> Cell:
    apart = None if group.reference is None else group.mean - group.reference.mean
    return Cell(signed(apart), apart)


def _parameters(group: Group) -> Cell:
    number = group.median_of("parameters")
    return Cell(f"{number:,.0f}", number)


def _flops(group: Group) -> Cell:
    return Cell(short_count(group.median_of("flops")), group.median_of("flops"))


def _epochs(group: Group) -> Cell:
    remark = f"of {group.paper_epochs}" if group.reference and group.has_other_length else ""
    config = group.config
    return Cell(str(config.num_epochs) if config.max_steps is None else config.length, config.duration, remark)


def _seconds(group: Group) -> Cell:
    return Cell(duration(group.median_of("seconds")), group.median_of("seconds"))


SCORE = Column(ACCURACY.key, ACCURACY.title)
"""The column of what runs are judged by, of which every table has its own."""
CHOSEN = Column("chosen", "chosen", is_number=False)
"""What a search has chosen."""
_FIRST: dict[Column, Callable[[Group], Cell]] = {
    Column("method", "method", is_number=False): method_cell,
    Column("sparsity", "sparsity"): _sparsity,
    CHOSEN: _chosen,
    Column("n", "n"): lambda group: Cell(str(len(group.results)), len(group.results)),
    SCORE: _score,
}
COLUMNS: dict[Column, Callable[[Group], Cell]] = {
    **_FIRST,
    Column("reference", "reference, %"): _reference,
    Column("difference", "difference"): _difference,
    Column("parameters", "parameters"): _parameters,
    Column("flops", "FLOPs"): _flops,
    Column("epochs", "epochs"): _epochs,
    Column("seconds", "time per run"): _seconds,
}


def results_grid(groups: Sequence[Group]) -> Grid:
    """One row per method and sparsity; columns that would be empty are left out."""
    return _grid(COLUMNS, groups)


def _grid(columns: Mapping[Column, Callable[[Group], Cell]], groups: Sequence[Group]) -> Grid:
    score = groups[0].score
    titles = [Column(score.key, score.title) if column is SCORE else column for column in columns]
    rows = [[cell(group) for cell in columns.values()] for group in groups]
    used = [i for i in range(len(columns)) if any(row[i].text for row in rows)]
    return Grid([titles[i] for i in used], [[row[i] for i in used] for row in rows])


WHERE = ("device", "host", "threads", "torch", "python", "regrow", "revision")


def where_grid(results: Sequence[Result]) -> Grid:
    """What was run where: one row per combination of device, versions and revision."""
    gathered: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        place = tuple(result.provenance.get(key, "") for key in WHERE)
        gathered.setdefault(place, []).append(result)
    columns = [Column(key, key, is_number=key == "threads") for key in WHERE]
    columns += [Column("runs", "runs"), Column("time", "total time"), Column("last", "last finished")]
    rows = []
    for place, some in sorted(gathered.items()):
        seconds = sum(result.seconds for result in some)
        last = max(result.provenance.get("finished", "") for result in some)
        cells = [Cell(text, float(text) if text.isdecimal() else text) for text in place]
        cells += [Cell(str(len(some)), len(some)), Cell(duration(seconds), seconds)]
        rows.append([*cells, Cell(last[:10], last)])
    return Grid(columns, rows)


def results_table(found: Collection) -> RenderableType:
    """The results of finished runs, for a terminal of 80 columns; a table per experiment."""
    return Stack(*(terminal_table(experiment) for experiment in found.experiments))


def terminal_table(experiment: Experiment) -> Table:
    table = Table(title=experiment.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False)
    table.padding, table.pad_edge, table.caption_justify = (0, 1, 0, 0), False, "left"
    grid = _grid(_IN_TERMINAL, experiment.groups)
    for column in grid.columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=column.is_number)
    for row in grid.rows:
        table.add_row(*(escape(cell.text) for cell in row))
    remarks = common(experiment)
    if any(group.reference and group.has_other_length for group in experiment.groups):
        remarks.append("*: the reference has another length.")
    table.caption = Text("\n".join(remarks)) if remarks else None
    return table


def _short_reference(group: Group) -> Cell:
    cell = _reference(group)
    mean = group.score.number(group.reference.mean) if group.reference else ""
    return Cell(f"{mean} *" if cell.remark else mean, cell.value)


_IN_TERMINAL: dict[Column, Callable[[Group], Cell]] = {
    **_FIRST,
    Column("reference", "reference"): _short_reference,
    Column("parameters", "parameters"): _parameters,
    Column("epochs", "epochs"): _epochs,
    Column("seconds", "time"): lambda group: Cell(clock(group.median_of("seconds")), group.median_of("seconds")),
}
