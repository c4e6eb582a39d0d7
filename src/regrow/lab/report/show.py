"""One run in the terminal: its settings, its result, its layers and how their sparsities emerged."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from regrow.lab.report.formats import byte_size, duration, several, short_count
from regrow.lab.report.labels import departures, experiment_title, label
from regrow.lab.report.result import Layer, Result, read_result
from regrow.lab.run.folder import Run

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_POINTS = 18


def show_run(run: Run) -> RenderableType:
    """Everything worth seeing of a run, finished or not."""
    config = run.config
    title = Text(f"{label(config)}, {experiment_title(config)}", style="bold")
    parts: list[RenderableType] = [title, Text(config.id, style="dim"), "", settings_table(run), ""]
    if run.summary is None:
        is_in_epochs = config.max_steps is None or not run.metrics
        done = len(run.metrics) if is_in_epochs else f"{run.metrics[-1]['step']:,.0f}"
        parts.append(f"Not finished: {done} of {config.length}.")
        return Stack(*parts, *_learning(run))
    result = read_result(run)
    parts += [result_table(result), *_learning(run)]
    if result.layers:
        parts += ["", layer_table(result)]
    return Stack(*parts)


def settings_table(run: Run) -> Table:
    """All settings; those that depart from the paper's are marked."""
    changed = departures(run.config)
    table = Table.grid(padding=(0, 2))
    for key, value in _flatten(run.config.settings()).items():
        is_changed = key in changed or (key.startswith("start.") and "start" in changed)
        style = "bold yellow" if is_changed else ""
        table.add_row(Text(key, style="dim"), Text(_plain(value), style=style), "not the paper's" if is_changed else "")
    return table


def result_table(result: Result) -> Table:
    table, score = Table.grid(padding=(0, 2)), result.config.data.score
    trained = several(result.epochs, "epoch") if result.config.max_steps is None else result.config.length
    rows = {
        f"test {score.words}": f"[bold]{score.number(result.score)} {score.unit}".rstrip() + "[/bold]",
        "test loss": f"{result.loss:.4g}",
        "trained": f"{trained} in {duration(result.seconds)}",
        "parameters": f"{result.parameters:,}",
        "description length": f"{result.bits:,} bits ({byte_size(result.bits)})",
        "FLOPs": short_count(result.flops),
        "with": escape(_provenance(result)),
    }
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    return table


def layer_table(result: Result) -> Table:
    """A bar for the sparsity of each layer, and its way there on a scale that all layers share."""
    histories = result.sparsities()
    low, high = _ends(list(chain(*histories.values())))
    has_moved = low < high
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    table.add_column("layer", no_wrap=True)
    for name in ("shape", "active", "sparsity"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if has_moved:
        table.add_column("emerging", no_wrap=True)
        table.caption = f"emerging: epoch 0 to {result.epochs}, from {low:.3f} (lowest) to {high:.3f} (highest)"
    for layer in result.layers:
        line = [sparkline(histories[layer.name], low, high)] if has_moved else []
        table.add_row(*_layer_cells(layer), bar(layer.sparsity), *line)
    return table


def bar(share: float, width: int = 10) -> str:
    """
    >>> bar(0.5, width=4), bar(0.40625, width=4)
    ('██  ', '█▋  ')
    """
    full, eighths = divmod(round(max(0.0, min(share, 1.0)) * width * 8), 8)
    return ("█" * full + (_EIGHTHS[eighths] if eighths else "")).ljust(width)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """
    >>> sparkline([0, 1, 2, 3, 2], 0, 3)
    '▁▃▆█▆'
    """
    if len(values) > _MOST_POINTS:
        last = len(values) - 1
        values = [values[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS)]
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round(top * (value - low) / (high - low)) if high > low else 0] for value in values)


def _learning(run: Run) -> list[RenderableType]:
    score = run.config.data.score
    values = [value for row in run.metrics if (value := score.of(row)) is not None]
    if len(values) < 2:
        return []
    low, high = _ends(values)
    ends = f"{score.number(low)} to {score.number(high)} {score.unit}".rstrip()
    return ["", f"[dim]test {score.words}[/dim]  {sparkline(values, low, high)}  {ends}"]


def _layer_cells(layer: Layer) -> tuple[str, ...]:
    shape = "x".join(map(str, layer.shape))
    return escape(layer.name.removesuffix(".weight")), shape, f"{layer.active:,}", f"{layer.sparsity:.4f}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 0.0)


def _provenance(result: Result) -> str:
    known = result.provenance
    parts = [f"{name} {known[name]}" for name in ("regrow", "torch", "python") if name in known]
    return ", ".join([*parts, *(known[name] for name in ("device", "host", "revision", "finished") if name in known)])


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Tables one level deep as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if key in ("method", "optimizer", "start"):
            flat |= {
                f"{key}.{name}": inner for name, inner in sorted(value.items(), key=lambda item: item[0] != "name")
            }
        else:
            flat[key] = value
    return flat


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items())
    return "none" if value is None else str(value)
