"""One run in the terminal: its settings, its result, its layers and how their sparsities emerged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from regrow.lab.config import Config, paper
from regrow.lab.report.formats import byte_size, duration, several, short_count
from regrow.lab.report.labels import departures, experiment_title, label
from regrow.lab.report.result import Layer, Result, read_result
from regrow.lab.run.folder import Run
from regrow.methods.method import METHODS

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_POINTS = 18


def show_run(run: Run) -> RenderableType:
    """Everything worth seeing of a run, finished or not."""
    config = run.config
    parts: list[RenderableType] = [show_config(config), ""]
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


def show_config(config: Config) -> RenderableType:
    """What a run is, trained or not: its settings, with those that are the paper's for its network and method."""
    title = Text(f"{label(config)}, {experiment_title(config)}", style="bold")
    table = Table.grid(padding=(0, 2))
    for key, value, is_usual in _settings(config):
        usual = "the paper's" if config.model.paper else "the default"
        remark = {True: usual, False: f"not {usual}", None: ""}[is_usual]
        is_changed = is_usual is False
        table.add_row(
            Text(key, style="dim"),
            Text(_plain(value), style="bold yellow" if is_changed else ""),
            Text(remark, style="" if is_changed else "dim"),
        )
    return Stack(title, Text(config.id, style="dim"), "", table)


def _settings(config: Config) -> Iterator[tuple[str, Any, bool | None]]:
    """All of them, and whether they are as the paper says, if it says anything."""
    changed, whole = departures(config), config.settings()
    whole["method"] = {"name": config.method_name, **_defaults_in_effect(config), **whole["method"]}
    of_paper = paper.settings_for(config.model.paper, config.method_name, config.is_thin, config.stretch)
    told = _flatten(of_paper)
    told |= {f"optimizer.{name}": value for name, value in whole["optimizer"].items()} if of_paper else {}
    for key, value in _flatten(whole).items():
        is_changed = key in changed or (key.startswith("start.") and "start" in changed)
        is_other = key in ("data", "epochs") and key in told and told[key] != value  # which no label speaks of
        yield key, value, False if is_changed or is_other else True if key in told else None


def _defaults_in_effect(config: Config) -> dict[str, Any]:
    """Fields of the method that nobody needs to say."""
    method = METHODS[config.method_name]
    without_effect = () if method.rewires else ("period", "until")
    defaults = {field.name: field.default for field in fields(method) if field.name not in without_effect}
    return defaults if "sparsity" in config.method else {}


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
        if key in ("method", "optimizer", "learning_rate", "start"):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items())
    return "none" if value is None else str(value)
