"""Results told apart by labels and gathered over seeds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median, stdev

from regrow.lab.config import Config
from regrow.lab.data import Score
from regrow.lab.report.chosen import beside_a_label, chosen_settings, in_a_label
from regrow.lab.report.formats import several, slug
from regrow.lab.report.labels import (
    departures,
    experiment_title,
    family,
    family_rank,
    label,
    paper_run,
    shared_departures,
    usual_departures,
)
from regrow.lab.report.reference import Reference, reference_for
from regrow.lab.report.result import Result, read_result
from regrow.lab.run.folder import Run

_OF_NO_MATTER = ("precision", "storage")


@dataclass(frozen=True)
class Group:
    """Results that differ in nothing but the seed and, where nobody compares, how weights were stored.

    `label` tells lengths apart where needed, `name` does not. `chosen`: what a search has chosen for it, in words.
    """

    name: str
    label: str
    family: str
    sparsity: float | None
    results: tuple[Result, ...]
    chosen: str = ""

    @property
    def config(self) -> Config:
        return self.results[0].config

    @property
    def score(self) -> Score:
        return self.config.data.score

    @property
    def scores(self) -> list[float]:
        return [result.score for result in self.results]

    @property
    def mean(self) -> float:
        return mean(self.scores)

    @property
    def sd(self) -> float | None:
        """The sample's, with n - 1; unknown for one run."""
        return stdev(self.scores) if len(self.results) > 1 else None

    @property
    def median(self) -> float:
        return median(self.scores)

    def median_of(self, quantity: str) -> float:
        return median(float(getattr(result, quantity)) for result in self.results)

    @property
    def representative(self) -> Result:
        """The run in the middle by its score, the lower one of two."""
        ordered = sorted(self.results, key=lambda result: (result.score, result.config.seed))
        return ordered[(len(ordered) - 1) // 2]

    @cached_property
    def reference(self) -> Reference | None:
        """Of what departs from the paper in nothing but how numbers are computed and stored."""
        mine = departures(self.config)
        name = label(self.config, without=[mine[key] for key in _OF_NO_MATTER if key in mine])
        return reference_for(str(self.config.model), self.config.data.in_words(), name, self.sparsity)

    @cached_property
    def paper_epochs(self) -> int:
        """How long the paper trained such a network."""
        return paper_run(self.config).num_epochs

    @property
    def has_other_length(self) -> bool:
        return self.config.num_epochs != self.paper_epochs


@dataclass(frozen=True)
class Experiment:
    """All results of one network on one data set.

    `shared`: in what all of them depart from the paper alike. `usual`: in what most do; labels name those that do not.
    """

    config: Config
    """One of its runs, for what all have in common."""
    shared: list[str]
    usual: list[str]
    groups: list[Group]

    @property
    def score(self) -> Score:
        return self.config.data.score

    @property
    def time(self) -> str:
        """What its figures are drawn over, "epoch" or "step"."""
        return "epoch" if all(group.config.max_steps is None for group in self.groups) else "step"

    def best_first(self, groups: Sequence[Group]) -> list[Group]:
        return sorted(groups, key=lambda group: group.median if self.score.is_lower_better else -group.median)

    @property
    def title(self) -> str:
        return experiment_title(self.config)

    @property
    def slug(self) -> str:
        """A name for files and anchors."""
        return slug(f"{self.config.model.in_words()}-{self.config.data.in_words()}")

    @property
    def results(self) -> list[Result]:
        return [result for group in self.groups for result in group.results]

    @property
    def sparsities(self) -> list[float]:
        return sorted({group.sparsity for group in self.groups if group.sparsity is not None})

    def at(self, sparsity: float | None) -> list[Group]:
        """The groups at one sparsity; dense ones belong to all."""
        return [group for group in self.groups if group.sparsity in (None, sparsity)]

    def rivals(self, sparsity: float) -> list[Group]:
        """Who can come first at a sparsity: thin dense networks, which hold more weights, only among themselves."""
        groups = [group for group in self.groups if group.sparsity == sparsity]
        return [group for group in groups if group.family != "Thin dense"] or groups

    @property
    def num_seeds(self) -> str:
        """Of each group, in words."""
        seeds = sorted({len(group.results) for group in self.groups})
        return several(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"

    @property
    def chosen_sparsity(self) -> float | None:
        """The sparsity with the most methods, the highest of several, for figures that show one."""
        return max(self.sparsities, key=lambda sparsity: (len(self.at(sparsity)), sparsity), default=None)


@dataclass(frozen=True)
class Collection:
    """Everything found: experiments, runs that are not finished, and sentences on what cannot be used."""

    experiments: list[Experiment]
    unfinished: list[Run]
    problems: list[str]

    @property
    def results(self) -> list[Result]:
        return [result for experiment in self.experiments for result in experiment.results]


def collect(runs: Sequence[Run], problems: Sequence[str] = ()) -> Collection:
    """Runs sorted into experiments and groups; a run that is there twice counts once."""
    found: dict[str, Result] = {}
    unfinished: dict[str, Run] = {}
    sentences = list(problems)
    for run in runs:
        if run.summary is None:
            unfinished[run.config.id] = run
            continue
        try:
            result = read_result(run)
        except ValueError as error:
            sentences.append(str(error))
            continue
        if result.id in found:
            sentences.append(f"{result.id} was found more than once; it counts once")
        found.setdefault(result.id, result)
    alike: dict[tuple[str, str], list[Result]] = {}
    for result in found.values():
        alike.setdefault((result.config.model.in_words(), result.config.data.in_words()), []).append(result)
    experiments = [
        _experiment(alike[pair], _trials_of(alike[pair][0].config, found.values())) for pair in sorted(alike)
    ]
    return Collection(experiments, [run for id_, run in unfinished.items() if id_ not in found], sentences)


def _trials_of(config: Config, results: Iterable[Result]) -> list[Config]:
    """The runs by which settings were searched for runs like this one."""
    try:
        data = config.data.for_searching()
    except ValueError:  # of which nothing can be held out
        return []
    found = [result.config for result in results if result.config.data == data != config.data]
    return [trial for trial in found if trial.model == config.model]


def _experiment(mine: Sequence[Result], trials: Sequence[Config] = ()) -> Experiment:
    configs = [result.config for result in mine]
    chosen = chosen_settings(configs, trials)
    shared = shared_departures(configs)
    unsaid = shared if _compares_storages(mine) else [*shared, "packed"]
    usual = {key: text for key, text in usual_departures(configs).items() if key not in chosen}
    mixes_lengths = len({(config.epochs, config.max_steps) for config in configs}) > 1
    gathered: dict[tuple[str, str, float | None], list[Result]] = {}
    for result in mine:
        name = label(result.config, [*unsaid, *in_a_label(result.config, chosen)], usual)
        whole = f"{name}, {_length(result.config)}" if mixes_lengths else name
        sparsity = result.config.sparsity if "sparsity" in result.config.method else None
        gathered.setdefault((name, whole, sparsity), []).append(result)
    groups = []
    for (name, whole, sparsity), some in gathered.items():
        first, ordered = some[0].config, tuple(sorted(some, key=lambda result: result.config.seed))
        groups.append(Group(name, whole, family(first), sparsity, ordered, beside_a_label(first, chosen)))
    return Experiment(configs[0], shared, list(usual.values()), sorted(groups, key=_place))


def _length(config: Config) -> str:
    return f"{config.epochs} epochs" if config.max_steps is None else f"{config.max_steps} steps"


def _compares_storages(results: Sequence[Result]) -> bool:
    """Whether anything was trained both ways. If not, how weights were stored is no difference between results."""
    stored = Counter(replace(result.config, storage="dense").id for result in results)
    return max(stored.values()) > 1


def _place(group: Group) -> tuple[float, int, int, str]:
    """Dense first, then the sparsest, methods in the order of the paper."""
    return (-2 if group.sparsity is None else -group.sparsity, family_rank(group.family), len(group.label), group.label)
