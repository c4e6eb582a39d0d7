"""Where a run begins, as settings say it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from regrow.lab.config.component import Component, Settings, component

_TOPOLOGIES = ("random", "magnitude", "final", "counts")
_WEIGHTS = ("fresh", "initial", "final")
_MOMENTS = ("clean", "aged", "informed")


@component
class Start(Component):
    """`topology`: "random"; "magnitude" (the largest weights); "final" (that of the other run when it ended); "counts"
    (random, but with as many weights in each layer as the other run ended with). `weights`: "fresh" draws; "initial"
    (as the other run drew them, before masking); "final" (as it left them). `run`: the other run, by its id or by
    settings that make it out of this run's model, data, sparsity, seed and length, e.g. {"method": "DSR"}. `rescale`:
    "density" multiplies the first weights of each layer by 1/sqrt(its density). `moments`: how an adaptive optimizer's
    state of grown weights begins, "clean", "aged" or "informed".
    """

    kind: ClassVar[str] = "start"
    name: ClassVar[str] = "start"

    topology: str = "random"
    weights: str = "fresh"
    run: str | Settings | None = None
    rescale: str | None = None
    moments: str = "clean"

    def check(self) -> None:
        check_choice("start.topology", self.topology, _TOPOLOGIES)
        check_choice("start.weights", self.weights, _WEIGHTS)
        check_choice("start.moments", self.moments, _MOMENTS)
        if self.run is not None and not isinstance(self.run, (str, Mapping)):
            raise ValueError(f'start.run must be an id or settings like {{method = "DSR"}}, got {self.run!r}')
        if self.rescale is not None:
            check_choice("start.rescale", self.rescale, ("density",))
            if self.topology != "random" or self.weights == "final":
                raise ValueError("start.rescale is for weights as they were drawn, in a random topology; leave it out")
        looks_back = self.topology in ("final", "counts") or self.weights != "fresh"
        if looks_back != (self.run is not None):
            why = "is not told" if looks_back else "has nothing to give"
            raise ValueError(
                f"start.topology = {self.topology!r} with start.weights = {self.weights!r}: the other run {why}; set "
                'start.run to its id or to settings like {method = "DSR"} exactly when one is needed'
            )


FRESH = Start()


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
