"""Axes that people can read: counts with units, whole numbers, and accuracies of which some are near 100 %."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from regrow.lab.data import Score
from regrow.lab.report.formats import duration, short_count

_TIMES = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800),
    *(3600 * hours for hours in (1, 3, 10, 30, 100, 300, 1000)),
)
_MARGIN = 0.08  # above and below what is shown, of an axis
_ACCURACIES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 99.8, 99.9)


def log_axis(axis: Any, text: Callable[[float], str] = short_count) -> None:
    """Marks like 5 k, 10 k, 20 k on a logarithmic axis, as many as there is room for."""
    low, high = sorted(axis.get_view_interval())
    ratio = high / max(low, 1e-300)
    room = ((8, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)), (500, (1.0, 2.0, 5.0)), (10_000, (1.0, 3.0)))
    subs = next((marks for most, marks in room if ratio < most), (1.0,))
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def time_axis(axis: Any) -> None:
    """Marks like 10 s, 1 min, 2 h on a logarithmic axis of seconds."""
    low, high = sorted(axis.get_view_interval())
    marks = [mark for mark in _TIMES if low <= mark <= high]
    if len(marks) < 2:
        log_axis(axis, duration)
        return
    axis.set_major_locator(FixedLocator(marks if len(marks) < 7 else marks[::2]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    axis.set_minor_locator(NullLocator())


def _time(seconds: float) -> str:
    """
    >>> _time(0.1), _time(30), _time(120), _time(36000)
    ('0.1 s', '30 s', '2 min', '10 h')
    """
    unit, size = ("h", 3600) if seconds >= 3600 else ("min", 60) if seconds >= 60 else ("s", 1)
    return f"{seconds / size:g} {unit}"


def whole_numbers(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(7, integer=True))


def counts(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def score_axis(axes: Axes, score: Score, values: Sequence[float]) -> None:
    """What runs are judged by."""
    if score.per_loss is None:
        _accuracy_axis(axes, values)
        return
    low, high = min(values), max(values)
    pad = max(_MARGIN * (high - low), 0.005)
    axes.set_ylim(max(0, low - pad), high + pad)
    axes.yaxis.set_major_locator(MaxNLocator(7))
    axes.set_ylabel(f"test {score.title}" + (" (lower is better)" if score.is_lower_better else ""))


def is_wide(accuracies: Sequence[float]) -> bool:
    """Whether some are so far below the others that those at the top would be one line.

    >>> is_wide([43.2, 98.6]), is_wide([97.1, 98.6])
    (True, False)
    """
    return (100 - min(accuracies) + 0.5) > 5 * (100 - max(accuracies) + 0.5)


def _accuracy_axis(axes: Axes, accuracies: Sequence[float]) -> None:
    """Percent; where some are far below the others the error is logarithmic, so that both ends can be read."""
    low, high = min(accuracies), max(accuracies)
    if is_wide(accuracies):
        axes.set_yscale("function", functions=(_stretch, _unstretch))
        ends = _stretch(low), _stretch(high)
        pad = _MARGIN * (ends[1] - ends[0])
        axes.set_ylim(max(0, _unstretch(ends[0] - pad)), min(100, _unstretch(ends[1] + pad)))
        axes.yaxis.set_major_locator(FixedLocator(_apart(_ACCURACIES, 0.055 * (ends[1] - ends[0]))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        pad = max(_MARGIN * (high - low), 0.05)
        axes.set_ylim(max(0, low - pad), min(100.2, high + pad))
        axes.yaxis.set_major_locator(MaxNLocator(7))
    axes.set_ylabel("test accuracy, %" + (" (log of error)" if is_wide(accuracies) else ""))


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
