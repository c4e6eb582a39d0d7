"""Figures without global state: drawn once, saved as SVG and PNG, the same bytes for the same data."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regrow.lab.report.palette import GRID, GROUND, INK, QUIET, Look, follow_page

_WIDTH, _PLOT, _LINE = 5.6, 3.4, 0.21  # inches: of a figure; height of its plot; of a line of its legend
_TOP, _BOTTOM, _LEFT, _RIGHT = 0.15, 0.66, 0.78, 0.12
_MOST_SPOTS = 24
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
class View:
    """Pictures that are seen together, e.g. those of one sparsity, and what is to be said of them alone."""

    pictures: list[Picture]
    name: str = ""
    note: str = ""


@dataclass(frozen=True)
class Plate:
    """Figures that belong together, with a caption; of several views one is chosen, at first the one `shown`."""

    title: str
    caption: str
    views: list[View]
    shown: int = 0

    @property
    def pictures(self) -> list[Picture]:
        return [picture for view in self.views for picture in view.pictures]


@dataclass(frozen=True)
class Spot:
    """What can be read off a figure at a point of its axes."""

    x: float
    y: float
    text: str


def spots_along(xs: Sequence[float], ys: Sequence[float], text: Callable[[float, float], str]) -> list[Spot]:
    """Spots on a line, not more than can be pointed at, the last of it among them."""
    every = max(1, -(-len(xs) // _MOST_SPOTS))
    chosen = sorted(range(len(xs) - 1, -1, -every))
    return [Spot(xs[i], ys[i], text(xs[i], ys[i])) for i in chosen]


def paint(name: str, title: str, alt: str, draw: Callable[[Axes], Sequence[Spot]]) -> Picture:
    """Let `draw` fill the axes of a new figure and say what can be read off; labelled lines go into a legend below."""
    with matplotlib.rc_context(_STYLE):  # some settings of SVG exist only there
        figure = Figure(figsize=(_WIDTH, _PLOT))
        axes = figure.add_subplot()
        spots = draw(axes)
        num_lines = _add_legend(axes)
        height = _PLOT + num_lines * _LINE
        figure.set_size_inches(_WIDTH, height)
        bottom = (height - _PLOT + _BOTTOM) / height
        figure.subplots_adjust(_LEFT / _WIDTH, bottom, 1 - _RIGHT / _WIDTH, 1 - _TOP / height)
        return Picture(name, title, alt, _with_values(_as_svg(figure), axes, spots), _as_png(figure))


def draw_runs(axes: Axes, x: float, scores: Sequence[float], its_look: Look) -> None:
    """A pale dot for every run of a group of several."""
    if len(scores) < 2:
        return
    dots = axes.plot([x] * len(scores), scores, linestyle="", marker="o", markersize=3.5, alpha=0.45)[0]
    dots.set(color=its_look.colour.light, markeredgewidth=0)


def _add_legend(axes: Axes) -> int:
    """The legend at the bottom of the figure; how many lines it takes."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return 0
    longest = max(map(len, labels))
    num_columns = 1 if longest > 29 else 2 if longest > 15 else 3
    wrapped = [wrap(text, 58) for text in labels]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    texts = ["\n".join(lines) for lines in wrapped]
    figure.legend(handles, texts, loc="lower left", bbox_to_anchor=(0.02, 0), ncols=num_columns, borderaxespad=0.2)
    return -(-sum(map(len, wrapped)) // num_columns)


def _as_svg(figure: Figure) -> str:
    """Coordinates to a hundredth of a point, which nobody can see and which halves the file."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return re.sub(r' (d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text.getvalue())


def _with_values(svg: str, axes: Axes, spots: Sequence[Spot]) -> str:
    """The figure with an unseen disc at every spot that lies within the axes, which tells its text when pointed at."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    scale, height, inside = 72 / figure.dpi, 72 * figure.get_figheight(), axes.get_window_extent().padded(1)
    discs = []
    for spot in spots:
        x, y = axes.transData.transform((spot.x, spot.y))
        if inside.contains(x, y):
            place = f'cx="{x * scale:.1f}" cy="{height - y * scale:.1f}"'
            discs.append(f'<circle {place} r="6"><title>{escape(spot.text)}</title></circle>\n')
    values = f'<g class="values" fill="none" pointer-events="all">\n{"".join(discs)}</g>\n'
    return svg.replace("</svg>", f"{values}</svg>") if discs else svg


def _as_png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=160, facecolor=GROUND.light, metadata={"Software": None})
    return content.getvalue()
