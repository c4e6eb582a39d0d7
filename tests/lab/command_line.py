"""The command line, as a user types it."""

import shlex
from pathlib import Path

from typer.testing import CliRunner

from regrow.lab.cli.main import app


def regrow(line: str, root: Path | None = None) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    where = ["--runs", str(root)] if root else []
    result = CliRunner().invoke(app, [*shlex.split(line), *where], env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
