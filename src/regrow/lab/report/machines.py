"""Which times compare: those of runs on one machine."""

from collections.abc import Mapping, Sequence

from regrow.lab.report.result import Result
from regrow.lab.report.results import Group


def on_one_machine(groups: Sequence[Group]) -> dict[str, list[Result]]:
    """By label, the runs on the machine where most labels were run, if any run says how long it took."""
    places: dict[tuple[str, ...], dict[str, list[Result]]] = {}
    for group in groups:
        for result in group.results:
            if any(row.get("seconds", 0.0) > 0 for row in result.metrics):
                places.setdefault(_place(result), {}).setdefault(group.label, []).append(result)
    number = {place: (len(found), sum(map(len, found.values()))) for place, found in places.items()}
    return places[max(sorted(number), key=lambda place: number[place])] if number else {}


def note_on_times(groups: Sequence[Group], alike: Mapping[str, Sequence[Result]]) -> str:
    """What is to be known of the times of `alike`, the runs of some groups that were on one machine."""
    said = []
    if alike and len({_place(result) for group in groups for result in group.results}) > 1:
        device, host, _ = _place(next(iter(alike.values()))[0])
        said.append(
            f"Over time only runs on one machine are shown ({host if device == 'cpu' else device}), as times on "
            "different ones do not compare."
        )
        missing = [group.label for group in groups if group.label not in alike]
        if missing:
            said.append(f"Not run there: {'; '.join(missing)}.")
    later = [group.label for group in groups if group.config.start.run is not None]
    if later:
        said.append(f"Without the time of the run that they start from: {'; '.join(later)}.")
    return " ".join(said)


def _place(result: Result) -> tuple[str, ...]:
    return tuple(result.provenance.get(key, "") for key in ("device", "host", "threads"))
