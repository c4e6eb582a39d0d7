"""Ctrl-C, a polite kill, a closed terminal: finish the step, save, stop.

A second one stops at once, where that is for us to decide. That a terminal was closed may well be told twice, by it and
by its shell; and whoever was started to outlive it (nohup) is not stopped by that.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals(*numbers: signal.Signals, second_counts: bool = True) -> Iterator[Callable[[], bool]]:
    """Within, the signals (by default all of them) only raise a flag, which the given function reads."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and second_counts and number != signal.SIGHUP:
            raise KeyboardInterrupt
        asked = True

    outlives = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    meant = [number for number in numbers or _ALL if not (number == signal.SIGHUP and outlives)]
    before = {number: signal.signal(number, ask) for number in meant}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
