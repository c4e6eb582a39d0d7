"""What is seen, in plain words."""

from collections.abc import Sequence

from regrow.lab.data import ACCURACY
from regrow.lab.report.formats import several, short_count
from regrow.lab.report.results import Collection, Experiment, Group
from regrow.lab.report.stopped import without_variants

PERCENT = "\N{NO-BREAK SPACE}%"


def title(found: Collection) -> str:
    titles = [experiment.title for experiment in found.experiments]
    return f"Sparse training: {listed(titles) if len(titles) <= 2 else several(len(titles), 'experiment')}"


def overview(found: Collection) -> str:
    """One paragraph for the whole page."""
    scores = list(dict.fromkeys(experiment.score for experiment in found.experiments))
    seen = listed([*(score.words for score in scores), "size", "layer sparsities"])
    meant = [f"lower {score.words} are better" for score in scores if score.is_lower_better]
    meant = ["accuracies are in percent", *meant] if ACCURACY in scores else meant
    parts = "the test set, or on what is said to be held out" if _some_held_out(found) else "the test set"
    return (
        f"{_sentence(seen)} of {several(len(found.results), 'finished run')}. Sparse "
        "networks of the same sparsity hold the same number of weights; methods differ in which ones, and in whether "
        f"that may change while training. {_sentence(listed(meant))}, on {parts}, after the last epoch; no epoch "
        "was picked for being good."
    )


def _some_held_out(found: Collection) -> bool:
    return any(experiment.config.data.is_for_searching for experiment in found.experiments)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def story(experiment: Experiment) -> str:
    """What was run, who came first where it is hardest, and how far from the dense network that is."""
    sentences = [_what_was_run(experiment)]
    if experiment.sparsities:
        sentences.append(_who_came_first(experiment, experiment.sparsities[-1]))
        if len(experiment.sparsities) > 1:
            sentences.append(_who_came_first(experiment, experiment.sparsities[0]))
    sentences += [_dense(group) for group in experiment.groups if group.sparsity is None]
    other = [group for group in experiment.groups if group.reference and group.has_other_length]
    if other:
        shares = [_times(share) for share in sorted({group.config.num_epochs / group.paper_epochs for group in other})]
        sentences.append(
            f"Runs with a reference of another length lasted {listed(shares)} as long as those behind it: expect the "
            "two to differ."
        )
    return " ".join(sentences)


def common(experiment: Experiment) -> list[str]:
    """The settings that labels leave out, as sentences."""
    said = [f"All runs: {listed(experiment.shared)}."] if experiment.shared else []
    return said + ([f"Unless said otherwise: {listed(experiment.usual)}."] if experiment.usual else [])


def _what_was_run(experiment: Experiment) -> str:
    labels = list(dict.fromkeys(group.label for group in experiment.groups))
    families = {group.family for group in experiment.groups}
    variants = " and variants" if len(labels) > len(families) else ""
    at = f" at sparsity {listed([f'{s:g}' for s in experiment.sparsities])}" if experiment.sparsities else ""
    runs, methods = several(len(experiment.results), "run"), several(len(labels), "method")
    return f"{runs}: {methods}{variants}{at}, {experiment.num_seeds} each."


def _who_came_first(experiment: Experiment, sparsity: float) -> str:
    groups = experiment.best_first(without_variants(experiment).rivals(sparsity))
    best, last = groups[0], groups[-1]
    size = f"with {_size(best)} parameters"
    if last is best:
        return f"At sparsity {sparsity:g} {best.label} reaches {_said(best)} {size}."
    first = f"At sparsity {sparsity:g} {best.label} comes first, median {_said(best)} {size}"
    return f"{first}; {last.label} comes last, with {_said(last)}."


def _dense(group: Group) -> str:
    return f"{group.label} reaches {_said(group)} with {_size(group)} parameters."


def _size(group: Group) -> str:
    return short_count(group.median_of("parameters")).replace(" ", "\N{NO-BREAK SPACE}")


def _said(group: Group) -> str:
    return group.score.text(group.median).replace(" ", "\N{NO-BREAK SPACE}", 1)


def _times(share: float) -> str:
    return f"{share:.2g} times" if share >= 1 else f"{100 * share:.2g}{PERCENT}"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
