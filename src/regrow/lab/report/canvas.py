"""Figures without global state: drawn once, saved as SVG and PNG, the same bytes for the same data."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from regrow.lab.data import Score
from regrow.lab.report.formats import short_count
from regrow.lab.report.palette import GRID, GROUND, INK, QUIET, follow_page

_WIDTH, _PLOT, _LINE = 5.6, 3.4, 0.21  # inches: of a figure; height of its plot; of a line of its legend
_TOP, _BOTTOM, _LEFT, _RIGHT = 0.15, 0.66, 0.78, 0.12
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "regrow",
    "text.parse_math": False,
    "text.color": INK.light,
    "axes.labelcolor": INK.light,
    "axes.edgecolor": QUIET.light,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET.light,
    "ytick.color": QUIET.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 10.0,
}
_ACCURACIES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 99.8, 99.9)


@dataclass(frozen=True)
class Picture:
    """A figure: its file name, what it shows in a few words, what can be seen in a sentence, and itself."""

    name: str
    title: str
    alt: str
    svg: str
    png: bytes

    def inline(self) -> Markup:
        """The figure as part of a page: its colours, and names that no other figure uses."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r'\b(id="|href="#|url\(#)', lambda found: found[1] + self.name + "-", body)
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
        return Markup(follow_page(re.sub(r' (width|height)="[\d.]+pt"', "", body, count=2)))


@dataclass(frozen=True)
class Plate:
    """Figures that belong together, with a caption."""

    title: str
    caption: str
    pictures: list[Picture]


def paint(name: str, title: str, alt: str, draw: Callable[[Axes], None]) -> Picture:
    """Let `draw` fill the axes of a new figure; its labelled lines go into a legend below."""
    with matplotlib.rc_context(_STYLE):  # some settings of SVG exist only there
        figure = Figure(figsize=(_WIDTH, _PLOT))
        axes = figure.add_subplot()
        draw(axes)
        num_lines = _add_legend(axes)
        height = _PLOT + num_lines * _LINE
        figure.set_size_inches(_WIDTH, height)
        bottom = (height - _PLOT + _BOTTOM) / height
        figure.subplots_adjust(_LEFT / _WIDTH, bottom, 1 - _RIGHT / _WIDTH, 1 - _TOP / height)
        return Picture(name, title, alt, _as_svg(figure), _as_png(figure))


def _add_legend(axes: Axes) -> int:
    """The legend at the bottom of the figure; how many lines it takes."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return 0
    labels = [shorten(text, 62, placeholder=" ...") for text in labels]
    longest = max(map(len, labels))
    num_columns = 1 if longest > 29 else 2 if longest > 15 else 3
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.02, 0), ncols=num_columns, borderaxespad=0.2)
    return -(-len(labels) // num_columns)


def _as_svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _as_png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=160, facecolor=GROUND.light, metadata={"Software": None})
    return content.getvalue()


def log_axis(axis: Any, text: Callable[[float], str] = short_count) -> None:
    """Marks like 5 k, 10 k, 20 k on a logarithmic axis, as many as there is room for."""
    low, high = sorted(axis.get_view_interval())
    ratio = high / max(low, 1e-300)
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if ratio < 8 else (1.0, 2.0, 5.0) if ratio < 120 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def whole_numbers(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(7, integer=True))


def counts(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def score_axis(axes: Axes, score: Score, values: Sequence[float], margin: float = 0.08) -> None:
    """What runs are judged by."""
    if score.per_loss is None:
        _accuracy_axis(axes, values, margin)
        return
    low, high = min(values), max(values)
    pad = max(margin * (high - low), 0.005)
    axes.set_ylim(max(0, low - pad), high + pad)
    axes.yaxis.set_major_locator(MaxNLocator(7))
    axes.set_ylabel(f"test {score.title}" + (" (lower is better)" if score.is_lower_better else ""))


def _accuracy_axis(axes: Axes, accuracies: Sequence[float], margin: float) -> None:
    """Percent; where some are far below the others the error is logarithmic, so that both ends can be read."""
    low, high = min(accuracies), max(accuracies)
    is_wide = (100 - low + 0.5) > 5 * (100 - high + 0.5)
    if is_wide:
        axes.set_yscale("function", functions=(_stretch, _unstretch))
        ends = _stretch(low), _stretch(high)
        pad = margin * (ends[1] - ends[0])
        axes.set_ylim(max(0, _unstretch(ends[0] - pad)), min(100, _unstretch(ends[1] + pad)))
        axes.yaxis.set_major_locator(FixedLocator(_apart(_ACCURACIES, 0.055 * (ends[1] - ends[0]))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        pad = max(margin * (high - low), 0.05)
        axes.set_ylim(max(0, low - pad), min(100.2, high + pad))
        axes.yaxis.set_major_locator(MaxNLocator(7))
    axes.set_ylabel("test accuracy, %" + (" (log of error)" if is_wide else ""))


def _apart(accuracies: Sequence[float], distance: float) -> list[float]:
    """Those that are far enough from one another, from the highest down."""
    kept: list[float] = []
    for accuracy in sorted(accuracies, reverse=True):
        if not kept or _stretch(kept[-1]) - _stretch(accuracy) >= distance:
            kept.append(accuracy)
    return kept


def _stretch(accuracy: Any) -> Any:
    return -np.log10(np.maximum(100.5 - accuracy, 1e-3))


def _unstretch(value: Any) -> Any:
    return 100.5 - 10.0**-value
