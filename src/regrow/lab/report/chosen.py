"""Which settings of results a search has chosen: told beside a method, of which no two results differ there."""

from collections.abc import Sequence
from typing import Any

from regrow.lab.config import Config
from regrow.lab.report.labels import departures, family, flat_settings
from regrow.lab.report.wording import in_words

Flat = dict[str, str]
"""Settings by dotted keys."""


def chosen_settings(configs: Sequence[Config], trials: Sequence[Config]) -> list[str]:
    """Settings, by dotted keys, that trials have tried and without which all of these runs are still told apart.

    Those with the most values come first: what a search tries is more than what is compared.
    """
    tried, flat = _tried([_flat(trial) for trial in trials]), [_flat(config) for config in configs]
    chosen: list[str] = []
    for key in sorted(tried, key=lambda key: (-tried[key], key)):
        if _num_told_apart(flat, [*chosen, key]) == _num_told_apart(flat, chosen):
            chosen.append(key)
    return chosen


def in_a_label(config: Config, chosen: Sequence[str]) -> list[str]:
    """What the label of a run would say of such settings."""
    said = departures(config)
    return [said[key] for key in chosen if key in said]


def beside_a_label(config: Config, chosen: Sequence[str]) -> str:
    """The same where it stands apart: all that was chosen, and not only what is unusual."""
    flat = flat_settings(config)
    return ", ".join(in_words(key, flat[key], config) for key in chosen if key in flat)


def _tried(trials: Sequence[Flat]) -> dict[str, int]:
    """The settings in which trials differ that are alike in all others, and the most values tried of each."""
    found = {}
    for key in {key for own in trials for key in own}:
        alike: dict[str, set[str]] = {}
        for own in trials:
            alike.setdefault(_without(own, [key]), set()).add(own.get(key, ""))
        if (most := max(map(len, alike.values()))) > 1:
            found[key] = most
    return found


def _num_told_apart(flat: Sequence[Flat], without: Sequence[str]) -> int:
    return len({_without(own, without) for own in flat})


def _flat(config: Config) -> Flat:
    """All settings but the seed."""
    length: dict[str, Any] = {"family": family(config), "sparsity": config.sparsity, "length": config.length}
    return {key: repr(value) for key, value in {**flat_settings(config), **length}.items()}


def _without(own: Flat, keys: Sequence[str]) -> str:
    return repr(sorted((key, value) for key, value in own.items() if key not in keys))
