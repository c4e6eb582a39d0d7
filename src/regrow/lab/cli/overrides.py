"""Settings that are said on the command line, as key=value."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regrow.lab.cli.terminal import fail

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Further settings as key=value, dotted, e.g. `method.prune=300 optimizer.momentum=0.8`."),
]


class TakesSettings(TyperCommand):
    """A command that is told settings as key=value, and says so where one is given as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for option, following in zip(args, [*args[1:], "--"], strict=True):
            name, equals, value = option.partition("=")
            if name.startswith("--") and name not in known and (places := _places_of(name)):
                value = value if equals else "..." if following.startswith("--") else following
                fail(f"there is no option {name}; say {' or '.join(f'{place}={value}' for place in places)}", 2)
        return super().parse_args(ctx, args)


def _places_of(option: str) -> list[str]:
    from dataclasses import fields

    from regrow.lab.config import Config
    from regrow.lab.config.places import places_of

    name = option.removeprefix("--").replace("-", "_")
    is_at_the_top = name == "sparsity" or name in {field.name for field in fields(Config)}
    return [name] if is_at_the_top else places_of(name)


def given_on_top(
    overrides: list[str] | None, epochs: int | None, precision: str | None, storage: str | None
) -> list[str]:
    """What is said on top of an experiment's file, as key=value."""
    named = {"epochs": epochs, "precision": precision, "storage": storage}
    return [*(f"{key}={value}" for key, value in named.items() if value is not None), *(overrides or [])]
