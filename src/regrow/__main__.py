"""The command line of the lab: `regrow`, or `python -m regrow`."""

import sys

from regrow.core.extras import MissingExtra, check_installed


def main() -> None:
    """Run it; without the packages that it needs, say so in a line."""
    try:
        check_installed("lab", "the command line", "typer", "rich")
    except MissingExtra as missing:
        sys.exit(f"error: {missing}")
    from regrow.lab.cli.main import app

    app()


if __name__ == "__main__":
    main()
