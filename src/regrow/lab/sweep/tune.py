"""What a search has found: which choice did best on what was held out, and whether better ones may lie beyond."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regrow.lab.config import Config, parent_id
from regrow.lab.config.search import Choice, Search
from regrow.lab.run.folder import RunFolder
from regrow.methods.method import is_number


@dataclass(frozen=True)
class Found:
    """The score of each choice of a search; None where its trial did not come to an end."""

    search: Search
    scores: tuple[float | None, ...]

    @property
    def config(self) -> Config:
        """One of the runs, for what all have in common."""
        return self.search.choices[0].configs[0]

    @property
    def num_tried(self) -> int:
        return len(self.scores) - self.scores.count(None)

    @property
    def best(self) -> tuple[Choice, float] | None:
        """The choice that did best, the first of equal ones, and its score."""
        sign = 1 if self.config.data.score.is_lower_better else -1
        pairs = zip(self.search.choices, self.scores, strict=True)
        scored = [(choice, score) for choice, score in pairs if score is not None]
        return min(scored, key=lambda pair: sign * pair[1], default=None)

    @property
    def at_edge(self) -> list[str]:
        """The searched settings of which the best value is the lowest or the highest that was to be tried."""
        if self.best is None:
            return []
        tried = {key: {dict(c.values)[key] for c in self.search.choices} for key, _ in self.search.choices[0].values}
        return [
            key
            for key, value in self.best[0].values
            if len(tried[key]) > 1 and all(map(is_number, tried[key])) and value in (min(tried[key]), max(tried[key]))
        ]


def trials_of(searches: Sequence[Search]) -> list[Config]:
    """The runs by which all choices are judged."""
    return [choice.trial for search in searches for choice in search.choices]


def only_judged(trials: Sequence[Config]) -> frozenset[str]:
    """Ids of those that no other starts from: nobody will want their weights."""
    return frozenset(trial.id for trial in trials) - {parent_id(trial) for trial in trials}


def look_at(search: Search, root: Path) -> Found:
    """What the trials of a search that are finished have found."""
    return Found(search, tuple(_score(choice.trial, root) for choice in search.choices))


def _score(trial: Config, root: Path) -> float | None:
    folder = RunFolder(root / trial.id)
    if not folder.has_finished(trial):
        return None
    summary = folder.summary()
    assert summary is not None
    score: float = summary[trial.data.score.key]
    return score
