"""A sparse network at a glance."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class LayerInfo:
    """A sparse layer as it is now; `active` counts weights."""

    name: str
    shape: tuple[int, ...]
    active: int
    sparsity: float

    @property
    def density(self) -> float:
        return self.active / prod(self.shape)


def summarise(title: str, layers: Sequence[LayerInfo]) -> str:
    """A table in plain text.

    >>> print(summarise("DSR", [LayerInfo("a.weight", (4, 5), 2, 0.9)]))
    DSR
    layer     shape  weights  active  sparsity
    a.weight  4x5         20       2    0.9000
    total                 20       2    0.9000
    """
    weights = [prod(layer.shape) for layer in layers]
    active = [layer.active for layer in layers]
    shapes = ["x".join(str(size) for size in layer.shape) for layer in layers]
    columns = [
        ["layer", *(layer.name for layer in layers), "total"],
        ["shape", *shapes, ""],
        ["weights", *(f"{n:,}" for n in [*weights, sum(weights)])],
        ["active", *(f"{n:,}" for n in [*active, sum(active)])],
        [
            "sparsity",
            *(
                f"{1 - a / max(w, 1):.4f}"
                for a, w in zip([*active, sum(active)], [*weights, sum(weights)], strict=True)
            ),
        ],
    ]
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = [
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths[2:], strict=True))
        for name, shape, *numbers in zip(*columns, strict=True)
    ]
    return "\n".join([title, *lines])
