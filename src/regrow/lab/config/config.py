"""What a run is: a frozen config, made from settings over the paper's defaults, and its id."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from regrow.lab.config import paper
from regrow.lab.config.checks import (
    check_config,
    check_fields,
    check_length_is_told,
    check_method_fields,
    check_method_name,
    check_plain_values,
    check_positive,
    check_rest_is_told,
)
from regrow.lab.config.component import Component, Settings, check_single, read_component
from regrow.lab.config.paper import merge
from regrow.lab.config.schedule import TIMES, Timetable, is_schedule, read_schedule, rewritten, tidy
from regrow.lab.config.start import FRESH, Start
from regrow.methods.method import METHODS, Method, is_number

if TYPE_CHECKING:
    from regrow.lab.data.named import NamedData
    from regrow.lab.learning_rates import LearningRate, Rates
    from regrow.lab.models import Model
    from regrow.lab.optimizers import Optimizer


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training, completely.

    It lasts `epochs` times `stretch`, or `max_steps`. Points in time in schedules are those of a training as long as
    `written_for`, and move along when the training is longer or shorter: epochs, or steps of a run of so many steps.
    `width`: of the hidden layers, 1 for the full network; "thin" for the dense network that takes as many bits as a
    sparse one of this sparsity. `method`: its name and fields; `until`, `begin` and the keys of tables are points in
    time, periods are steps or text like "2 epochs". `clip`: gradients are made no longer than that, all together.
    """

    model: "Model"
    data: "NamedData"
    method: Settings
    epochs: int | None = None
    max_steps: int | None = None
    written_for: float
    batch_size: int
    optimizer: "Optimizer"
    learning_rate: "LearningRate"
    clip: float | None = None
    seed: int = 0
    stretch: float = 1.0
    width: float | str = 1.0
    precision: str = "float32"
    storage: str = "dense"
    start: Start = FRESH

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    @property
    def sparsity(self) -> float:
        return float(self.method.get("sparsity", 0.0))

    @property
    def is_thin(self) -> bool:
        return self.width == "thin"

    @property
    def num_epochs(self) -> int:
        """How long it really trains; of a run of so many steps it is not known before there is data."""
        return 0 if self.epochs is None else max(1, round(self.epochs * self.stretch))

    @property
    def length(self) -> str:
        """How long that is, in words."""
        return f"{self.num_epochs} epochs" if self.max_steps is None else f"{self.duration:,} steps"

    @property
    def duration(self) -> int:
        """How long that is, in epochs or in steps, as it is told."""
        return self.num_steps(steps_per_epoch=1)

    def num_steps(self, steps_per_epoch: int) -> int:
        """How long that is in steps."""
        if self.max_steps is None:
            return self.num_epochs * steps_per_epoch
        return max(1, round(self.max_steps * self.stretch))

    def timetable(self, steps_per_epoch: int) -> Timetable:
        """Turns points in time, as schedules are written, into this run's steps."""
        return Timetable(self.num_steps(steps_per_epoch), self.written_for)

    def rates(self, steps_per_epoch: int) -> "Rates":
        """The learning rate of each step."""
        density = 1.0 if self.is_thin else 1 - self.sparsity
        return self.learning_rate.rates(self.timetable(steps_per_epoch), density)

    def make_method(self, steps_per_epoch: int) -> Method:
        given = {key: value for key, value in self.method.items() if key != "name"}
        return METHODS[self.method_name](**self.timetable(steps_per_epoch).method_fields(given))

    def settings(self) -> Settings:
        """Everything as plain tables, for JSON."""
        made = {f.name: getattr(self, f.name) for f in fields(self)}
        rate, optimizer = made.pop("learning_rate"), made["optimizer"]
        is_table, is_sgd = rate.name == "table", optimizer.name == "SGD"
        made |= {"model": self.model.said(), "data": self.data.said(), "start": self.start.settings()}
        made["optimizer"] = ({} if is_sgd else {"name": optimizer.name}) | optimizer.settings()
        if is_table:
            made["optimizer"]["lr"] = rate.values
        else:
            made["learning_rate"] = {"name": rate.name, **rate.settings()}
        return made

    @property
    def id(self) -> str:
        """A readable slug and a hash of all that is not default: the same for the same run, always.

        A field that is added later, with a default that changes nothing, leaves the ids of older runs as they are.
        """
        kind = "thin" if self.is_thin else self.method_name.lower()
        sparsity = f"{self.sparsity:g}" if "sparsity" in self.method else ""
        parts = [str(self.model), str(self.data), kind, sparsity]
        said = json.loads(json.dumps(self._departures()))  # keys as text, whatever they were
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
        return "-".join([*filter(None, parts), f"seed{self.seed}", digest])

    def _departures(self) -> Settings:
        """All that is not as it would be if nobody had said anything, as settings."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        rate, optimizer = given.pop("learning_rate"), given.pop("optimizer")
        said = {key: value.said() if isinstance(value, Component) else value for key, value in given.items()}
        if "start" in said:
            said["start"] = self.start.departures()
        said["method"] = _departures_of_method(self.method)
        of_optimizer = optimizer.departures() | ({} if optimizer.name == "SGD" else {"name": str(optimizer)})
        if rate.name != "table":
            said["learning_rate"] = {"name": rate.name, **rate.departures()}
        elif rate.departures():
            of_optimizer["lr"] = rate.values
        return said | ({"optimizer": of_optimizer} if of_optimizer else {})


def make_config(settings: Mapping[str, Any]) -> Config:
    """A config out of settings, the paper's for its model and method below them.

    >>> make_config({"method": "DSR", "sparsity": 0.99}).id
    'lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b'
    """
    given = spell_out(settings)
    model = read_component("model", given.setdefault("model", "lenet_300_100"))
    check_method_name(given.get("method", {}))
    check_method_fields(given["method"])
    check_single("optimizer.lr", given.get("optimizer", {}).get("lr"))
    check_length_is_told(given)
    is_thin = given.get("width") == "thin"
    below = paper.settings_for(model.paper, given["method"]["name"], is_thin, given.get("stretch"))
    if not below:
        check_rest_is_told(given, str(model))
        length: Any = given.get("written_for", given.get("max_steps", given.get("epochs")))
        return _build(_with_an_end({"written_for": length, **given}, is_for_all=True))
    length = given.get("written_for", below["written_for"])
    check_positive("written_for", length)
    return _build(_with_an_end(merge(rewritten(_that_fit(below, given), length), given)))


def _with_an_end(whole: Settings, is_for_all: bool = False) -> Settings:
    """A method that needs an end, as it moves less and less, has that at three quarters of the training by default.

    Or all that rewire now and then, so that no run ends with weights that were just grown.
    """
    method, length = whole["method"], whole["written_for"]
    cls = METHODS[method["name"]]
    has_end = cls.falls or cls.until is not None or (is_for_all and cls.rewires and not cls.rewires_every_step)
    if "until" in method or not has_end or not is_number(length):
        return whole
    return {**whole, "method": {**method, "until": tidy(0.75 * length)}}


def _that_fit(below: Settings, given: Settings) -> Settings:
    """Of the paper's settings those that mean something below others."""
    fit = merge({}, below)
    if "max_steps" in given:
        del fit["epochs"]
    if given.get("optimizer", {}).get("name", "SGD") != "SGD":
        fit["optimizer"] = {}  # what was found for SGD says nothing of others
    elif "learning_rate" in given:
        fit["optimizer"].pop("lr", None)
    return fit


def spell_out(settings: Mapping[str, Any]) -> Settings:
    """Settings in their full form: `method = "DSR"` is its name, `sparsity` a field of the method."""
    given = merge({}, settings)
    for key, value in given.items():
        check_single(key, value)
    for table in ("method", "optimizer"):
        if isinstance(given.get(table), str):
            given[table] = {"name": given[table]}
    if "sparsity" in given and isinstance(given.setdefault("method", {}), Mapping):
        given["method"] = {**given["method"], "sparsity": given.pop("sparsity")}
    for table in ("method", "optimizer", "start"):
        if table in given and not isinstance(given[table], Mapping):
            raise ValueError(f"{table} must be a table of settings, got {given[table]!r}")
    return given


def read_config(settings: Mapping[str, Any]) -> Config:
    """A config exactly as it was saved by `settings()`, without defaults below it."""
    return _build(merge({}, settings))


def parent_of(config: Config) -> Config | None:
    """The run that has to be finished before this one can start, if it is told by settings."""
    if not isinstance(config.start.run, Mapping):
        return None
    same = ["model", "data", "seed", "epochs", "max_steps", "batch_size", "precision", "storage"]
    same += [] if config.is_thin else ["width"]
    if config.model.paper is None:  # of which no other settings are known
        same += ["optimizer", "learning_rate", "clip"]
    told, other = config.settings(), spell_out(config.start.run)
    mine = {key: told[key] for key in same if told.get(key) is not None}
    if other.get("method", {}).get("name") != "Dense" or other.get("width") == "thin":
        mine["sparsity"] = config.sparsity
    return make_config(merge(spell_out(mine), other))


def parent_id(config: Config) -> str | None:
    """The id of the run that this one starts from."""
    parent = parent_of(config)
    return parent.id if parent else config.start.run if isinstance(config.start.run, str) else None


def _build(whole: Settings) -> Config:
    check_fields(whole, Config, "a run", ("optimizer", "learning_rate"))
    check_plain_values(whole)
    optimizer = dict(whole.get("optimizer", {}))
    rate = optimizer.pop("lr", None)
    method = {key: _read_field(key, value) for key, value in whole["method"].items() if value is not None}
    if method["name"] == "Dense" and whole.get("width") != "thin":
        method.pop("sparsity", None)  # has no effect there
    start = dict(whole.get("start", {}))
    start["run"] = _in_short(start.get("run"), method.get("sparsity"))
    made = {
        **whole,
        "model": read_component("model", whole["model"]),
        "data": read_component("data", whole["data"]),
        "written_for": tidy(whole["written_for"]),
        "stretch": _float(whole.get("stretch", 1.0)),
        "width": _float(whole.get("width", 1.0)),
        "clip": _float(whole.get("clip")),
        "optimizer": read_component("optimizer", {"name": "SGD", **optimizer}),
        "learning_rate": _read_rate(rate, whole.get("learning_rate"), optimizer),
        "method": method,
        "start": Start.read(start),
    }
    config = Config(**made)
    check_config(config)
    config.make_method(steps_per_epoch=1000)  # complains about its fields
    return config


# The same settings, however they are spelled, must be the same config, or a run would have several ids.


def _read_rate(of_optimizer: Any, given: Any, optimizer: Settings) -> Any:
    """The learning rate, which may be said as `optimizer.lr` or as `learning_rate`."""
    if given is None and of_optimizer is None:
        name = optimizer.get("name", "SGD")
        raise ValueError(
            f"say which learning rate {name} is to have: optimizer.lr=0.1, or learning_rate.name=cosine with "
            "learning_rate.peak=0.1"
        )
    if given is not None and of_optimizer is not None:
        raise ValueError("optimizer.lr and learning_rate both say the learning rate; leave one out")
    values = given if of_optimizer is None else of_optimizer
    is_plain = of_optimizer is not None or is_schedule(values) or not isinstance(values, (str, Mapping))
    return read_component("learning_rate", {"name": "table", "values": values} if is_plain else values)


def _read_field(key: str, value: Any) -> Any:
    if is_schedule(value):
        return read_schedule(f"method.{key}", value)
    if key in TIMES:
        return tidy(value)
    return value if key in ("prune", "fraction", "period") else _float(value)


def _float(value: Any) -> Any:
    return float(value) if type(value) is int else value


def _in_short(run: Any, sparsity: Any) -> Any:
    """The run that another starts from without what goes without saying; `{method = {name = "DSR"}}` is "DSR"."""
    if not isinstance(run, Mapping):
        return run
    other = spell_out(run)
    method = {key: value for key, value in other.pop("method", {}).items() if (key, value) != ("sparsity", sparsity)}
    short = method["name"] if method.keys() == {"name"} else method
    return {**other, "method": short} if short else other


def _departures_of_method(given: Settings) -> Settings:
    defaults = {f.name: f.default for f in fields(METHODS[given["name"]])}
    return {key: value for key, value in given.items() if key not in defaults or value != defaults[key]}
