"""Ctrl-C and a polite kill: finish the step, save, stop. A second one stops at once, where that is for us to decide."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(*numbers: signal.Signals, second_counts: bool = True) -> Iterator[Callable[[], bool]]:
    """Within, the signals (by default both) only raise a flag, which the given function reads."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and second_counts:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
