"""The results at a glance: what runs are judged by, a row per method and a column per sparsity."""

from dataclasses import replace

from regrow.lab.report.palette import looks
from regrow.lab.report.results import Experiment, Group
from regrow.lab.report.stopped import without_variants
from regrow.lab.report.story import common
from regrow.lab.report.tables import Cell, Column, Grid, method_cell


def matrix(experiment: Experiment) -> Grid | None:
    """None where nothing is sparse. Dense networks, which have no column, are the foot.

    What stopped rewiring early has a figure of its own and is left out.
    """
    experiment = without_variants(experiment)
    sparsities = list(reversed(experiment.sparsities))
    if not sparsities:
        return None
    found = {(group.label, group.sparsity): group for group in experiment.groups}
    labels = [label for label in looks(experiment) if (label, None) not in found]
    best = [_best(experiment, sparsity) for sparsity in sparsities]
    rows = [
        [
            method_cell(next(group for group in experiment.groups if group.label == label)),
            *(_cell(found.get((label, at)), score) for at, score in zip(sparsities, best, strict=True)),
        ]
        for label in labels
    ]
    dense = [[method_cell(group), _dense(group)] for group in experiment.groups if group.sparsity is None]
    columns = [Column(f"{sparsity:g}", f"{sparsity:g}") for sparsity in sparsities]
    return Grid([Column("method", "method", is_number=False), *columns], rows, dense)


def matrix_caption(experiment: Experiment) -> str:
    """How the table is read, and what its runs have in common."""
    experiment = without_variants(experiment)
    said = [f"Test {experiment.score.title} by sparsity"]
    number = experiment.num_seeds
    said[0] += "." if number == "1 seed" else f": mean ± sample standard deviation over {number}."
    if any(_best(experiment, sparsity) is not None for sparsity in experiment.sparsities):
        said.append("In bold the best of a sparsity.")
    if any(group.reference for group in experiment.groups if group.sparsity is not None):
        said.append("In small print the reference.")
    if any(group.reference and group.has_other_length for group in experiment.groups):
        said.append("*: trained for another number of epochs.")
    return " ".join([*said, *common(experiment)])


def _best(experiment: Experiment, sparsity: float) -> float | None:
    """The best mean, where there is another to be better than."""
    groups = experiment.rivals(sparsity)
    best = min if experiment.score.is_lower_better else max
    return best(group.mean for group in groups) if len(groups) > 1 else None


def _cell(group: Group | None, best: float | None) -> Cell:
    if group is None:
        return Cell("", None)
    cell = Cell(_together(group.score.spread(group.mean, group.sd)), group.mean, is_best=group.mean == best)
    if group.reference is None:
        return cell
    spread = group.score.spread(group.reference.mean, group.reference.sd)
    return replace(cell, remark=("*" if group.has_other_length else "") + _together(spread))


def _together(spread: str) -> str:
    """A line may break before the deviation, not within."""
    return spread.replace("± ", "±\N{NO-BREAK SPACE}")


def _dense(group: Group) -> Cell:
    text = f"{group.score.spread(group.mean, group.sd)} with {group.median_of('parameters'):,.0f} parameters"
    return Cell(text, group.mean)
