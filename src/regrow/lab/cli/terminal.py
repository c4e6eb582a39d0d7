"""Where commands speak, and what went wrong as a sentence."""

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

P = ParamSpec("P")
R = TypeVar("R")

out, err = Console(highlight=False), Console(stderr=True, highlight=False)


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Show what a user can do something about as a sentence, and leave with exit code 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from regrow.lab.sweep.outcome import EXPECTED

        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            fail(str(error))
        except RecursionError:
            fail("these settings are nested too deeply; no setting is more than a table in a table")

    return run


def fail(message: str, code: int = 1) -> NoReturn:
    """Say so, and leave."""
    err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)
