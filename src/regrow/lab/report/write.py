"""The report: run folders in, one page that needs nothing else out, with its figures and CSV files beside it."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from regrow.files.atomic import write_bytes, write_text
from regrow.lab.report import palette
from regrow.lab.report.benches import Bench, read_benches
from regrow.lab.report.canvas import Plate
from regrow.lab.report.export import results_csv, runs_csv
from regrow.lab.report.figures import plates
from regrow.lab.report.matrix import matrix, matrix_caption
from regrow.lab.report.reference import note_for
from regrow.lab.report.results import Collection, Experiment, collect
from regrow.lab.report.search_figures import search_plate
from regrow.lab.report.searched import search_grid, search_story, series_of
from regrow.lab.report.story import common, overview, story, title
from regrow.lab.report.tables import Grid, results_grid, where_grid
from regrow.lab.report.width_figures import width_grid, width_plate, widths_in
from regrow.lab.run.folder import find_runs


@dataclass(frozen=True)
class Report:
    """What was written. `problems` are sentences on runs that could not be used."""

    page: Path
    num_runs: int
    num_unfinished: int
    problems: list[str]


@dataclass(frozen=True)
class Section:
    """An experiment as the page shows it."""

    experiment: Experiment
    story: str
    note: str
    matrix: Grid | None
    matrix_title: str
    matrix_caption: str
    common: str
    plates: list[Plate]
    results: Grid


@dataclass(frozen=True)
class Comparison:
    """What is compared over several networks."""

    plate: Plate
    grid: Grid


def write_report(paths: Sequence[Path], out: Path) -> Report:
    """Write `out`/index.html, `out`/results.csv, `out`/runs.csv and `out`/figures about all runs below some folders."""
    benches, not_benches = read_benches(paths)
    found = _find(paths, not_benches)
    sections = [_section(experiment) for experiment in found.experiments]
    comparisons = [Comparison(width_plate(own), width_grid(own)) for own in widths_in(found.experiments)]
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for plate in [*(c.plate for c in comparisons), *(plate for section in sections for plate in section.plates)]:
        _write_figures(plate, out / "figures")
    write_text(out / "results.csv", results_csv(found))
    write_text(out / "runs.csv", runs_csv(found))
    page = out / "index.html"
    write_text(page, render(found, sections, benches, comparisons))
    return Report(page, len(found.results), len(found.unfinished), found.problems)


def render(
    found: Collection,
    sections: Sequence[Section],
    benches: Sequence[Bench] = (),
    comparisons: Sequence[Comparison] = (),
) -> str:
    """The page. All that comes from files is escaped."""
    pages = Environment(
        loader=PackageLoader("regrow.lab.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    script = Markup(_source(pages, "report.js"))
    style = pages.get_template("report.css").render(
        light=Markup(palette.variables(is_dark=False)),
        dark=Markup(palette.variables(is_dark=True)),
        num_views=max((len(plate.views) for section in sections for plate in section.plates), default=0),
    )
    return pages.get_template("report.html").render(
        found=found,
        sections=sections,
        comparisons=comparisons,
        title=title(found),
        overview=overview(found),
        where=where_grid(found.results),
        benches=benches,
        colours=palette.METHODS,
        other=palette.OTHER,
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),
    )


def _find(paths: Sequence[Path], problems: Sequence[str]) -> Collection:
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no folder {path}; give folders that hold runs, e.g. runs")
    runs, unreadable = find_runs(paths)
    found = collect(runs, [*unreadable, *problems])
    if not found.results:
        where = " and ".join(str(path) for path in paths)
        because = [f"{len(found.unfinished)} not finished"] if found.unfinished else []
        because += found.problems
        reason = f" ({'; '.join(because)})" if because else ""
        raise ValueError(f"there is no finished run in {where}{reason}; train some with regrow train or regrow sweep")
    return found


def _section(experiment: Experiment) -> Section:
    if found := series_of(experiment) if experiment.config.data.is_for_searching else []:
        return Section(
            experiment,
            search_story(found),
            "",
            search_grid(found),
            "Best of what was searched",
            "Of each line the best of what was tried.",
            " ".join(common(experiment)),
            [search_plate(experiment, found)],
            results_grid(experiment.groups),
        )
    has_reference = any(group.reference for group in experiment.groups)
    note = note_for(str(experiment.config.model), str(experiment.config.data)) if has_reference else ""
    return Section(
        experiment,
        story(experiment),
        note,
        matrix(experiment),
        f"{experiment.score.words.capitalize()} by method and sparsity",
        matrix_caption(experiment),
        " ".join(common(experiment)),
        plates(experiment),
        results_grid(experiment.groups),
    )


def _write_figures(plate: Plate, folder: Path) -> None:
    for picture in plate.pictures:
        write_text(folder / f"{picture.name}.svg", picture.svg)
        write_bytes(folder / f"{picture.name}.png", picture.png)


def _source(pages: Environment, name: str) -> str:
    assert pages.loader is not None
    return pages.loader.get_source(pages, name)[0]
