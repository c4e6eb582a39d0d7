"""One look for every method, in all figures and tables, on light and on dark ground.

The colours of methods stay apart under simulated protanopia, deuteranopia and tritanopia (tested). Markers on lines say
the same once more, and dashes tell variants of a method apart.
"""

from collections import Counter
from dataclasses import dataclass

from matplotlib.lines import Line2D
from matplotlib.typing import FillStyleType

from regrow.lab.report.labels import FAMILIES, family_rank
from regrow.lab.report.results import Experiment


@dataclass(frozen=True)
class Colour:
    """`name` is that of a CSS variable; figures are drawn in `light` and follow the page where it turns dark."""

    name: str
    light: str
    dark: str


@dataclass(frozen=True)
class Look:
    """How one label is drawn: lines, which have dashes, and markers, whose `fill` stands for these; and small dots."""

    colour: Colour
    marker: str
    dashes: str | tuple[int, tuple[int, ...]]
    fill: FillStyleType
    dot: str

    def on(self, line: Line2D) -> None:
        """Draw a line like that."""
        line.set(color=self.colour.light, linestyle=self.dashes, marker=self.marker)
        line.set(fillstyle=self.fill, markerfacecoloralt=GROUND.light)


INK = Colour("ink", "#1b1f24", "#e8eaed")
QUIET = Colour("quiet", "#5b6470", "#a4adb8")
GRID = Colour("grid", "#dfe3e8", "#353b44")
GROUND = Colour("ground", "#ffffff", "#14171b")

_METHODS = {
    "Full dense": ("#3e3e3e", "#c3d1de", "s"),
    "Thin dense": ("#9192a5", "#64696f", "D"),
    "Static": ("#d47d07", "#f2832e", "v"),
    "Compressed": ("#680fab", "#af31a8", "^"),
    "SET": ("#4b7e5f", "#3cff81", "P"),
    "DeepR": ("#95077c", "#cb262f", "X"),
    "HashedNet": ("#b0894d", "#ffe12e", "h"),
    "DSR": ("#0007f1", "#4a54ed", "o"),
    "RigL": ("#683717", "#d19583", "p"),
    "SNFS": ("#4592ff", "#55acff", "*"),
}
METHODS = {family: Colour("m-" + family.lower().replace(" ", "-"), *_METHODS[family][:2]) for family in FAMILIES}
OTHER = Colour("m-other", "#55606e", "#9aa7b7")
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 4)), (0, (6, 3, 2, 3)))
_FILLS: tuple[FillStyleType, ...] = ("full", "left", "right", "top", "bottom")
_DOTS = ("o", "x", "+", "1", "2", "3", "4", "|")
_OTHER_MARKERS = ("o", "d", "<", ">", "H", "8")

# From the first layer to the last: dark to bright, brighter where the ground is dark.
_LAYERS_LIGHT = ("#46105c", "#463480", "#3a538b", "#2d6f8e", "#228b8d", "#1f9f82", "#3bb172", "#79b83b", "#b0ae12")
_LAYERS_DARK = ("#a06cc8", "#8784dd", "#6b9ce6", "#4fb4dd", "#3bc9c4", "#45d99f", "#79e47c", "#b4ea5f", "#f2e34c")
LAYERS = [
    Colour(f"layer-{i}", light, dark) for i, (light, dark) in enumerate(zip(_LAYERS_LIGHT, _LAYERS_DARK, strict=True))
]
ALL = (INK, QUIET, GRID, GROUND, OTHER, *METHODS.values(), *LAYERS)


def look(family: str, variant: int = 0) -> Look:
    """Of a method; variants of it (other granularity, controls, ...) are dashed and half filled, with other dots."""
    marker = _METHODS[family][2] if family in _METHODS else _OTHER_MARKERS[variant % len(_OTHER_MARKERS)]
    dashes, dot = _DASHES[variant % len(_DASHES)], _DOTS[variant % len(_DOTS)]
    return Look(METHODS.get(family, OTHER), marker, dashes, _FILLS[variant % len(_FILLS)], dot)


def looks(experiment: Experiment) -> dict[str, Look]:
    """By label, in the order of the paper. The labels of one method share its colour, the plain one is undashed.

    Methods that have no colour of their own share one, and are told apart as variants are.
    """
    families = {group.label: group.family for group in experiment.groups}
    ordered = sorted(families, key=lambda label: (family_rank(families[label]), families[label], len(label), label))
    found: dict[str, Look] = {}
    seen: Counter[Colour] = Counter()
    for label in ordered:
        colour = METHODS.get(families[label], OTHER)
        found[label] = look(families[label], seen[colour])
        seen[colour] += 1
    return found


def layer_colour(index: int, num_layers: int) -> Colour:
    """
    >>> layer_colour(0, 3).name, layer_colour(2, 3).name
    ('layer-0', 'layer-8')
    """
    return LAYERS[round(index * (len(LAYERS) - 1) / max(num_layers - 1, 1))]


def variables(is_dark: bool) -> str:
    """CSS that defines all colours."""
    return " ".join(f"--{colour.name}: {colour.dark if is_dark else colour.light};" for colour in ALL)


def follow_page(svg: str) -> str:
    """A figure whose colours are the page's variables."""
    for colour in ALL:
        svg = svg.replace(colour.light, f"var(--{colour.name})")
    return svg
