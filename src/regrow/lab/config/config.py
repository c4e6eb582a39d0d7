"""What a run is: a frozen config, made from settings over the paper's defaults, and its id."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from regrow.lab.config import paper
from regrow.lab.config.checks import (
    check_config,
    check_fields,
    check_length_is_told,
    check_model_and_method,
    check_plain_values,
    check_positive,
)
from regrow.lab.config.paper import Settings, merge
from regrow.lab.config.schedule import TIMES, Timetable, is_schedule, read_schedule, rewritten, tidy
from regrow.methods.method import METHODS, Method

Epochs = dict[float, float]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """SGD. `lr`: the learning rate by first epoch."""

    lr: Epochs = field(default_factory=lambda: {0: 0.1})
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run begins.

    `topology`: "random"; "magnitude" (the largest weights); "final" (that of the other run when it ended); "counts"
    (random, but with as many weights in each layer as the other run ended with). `weights`: "fresh" draws; "initial"
    (as the other run drew them, before masking); "final" (as it left them). `run`: the other run, by its id or by
    settings that make it out of this run's model, data, sparsity, seed and length, e.g. {"method": "DSR"}.
    """

    topology: str = "random"
    weights: str = "fresh"
    run: str | Settings | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training, completely.

    It lasts `epochs` times `stretch`. Points in time in schedules are epochs of a training of `written_for` epochs and
    move along when the training is longer or shorter. `width`: of the hidden layers, 1 for the full network; "thin"
    for the dense network that takes as many bits as a sparse one of this sparsity. `method`: its name and fields;
    `until`, `begin` and the keys of tables are epochs, periods are steps or text like "2 epochs".
    """

    model: str
    data: str
    method: Settings
    epochs: int
    written_for: float
    batch_size: int
    optimizer: Optimizer
    seed: int = 0
    stretch: float = 1.0
    width: float | str = 1.0
    precision: str = "float32"
    storage: str = "dense"
    start: Start = Start()

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    @property
    def sparsity(self) -> float:
        return float(self.method.get("sparsity", 0.0))

    @property
    def num_epochs(self) -> int:
        """How long it really trains."""
        return max(1, round(self.epochs * self.stretch))

    def timetable(self, steps_per_epoch: int) -> Timetable:
        """Turns epochs, as schedules are written, into this run's steps."""
        return Timetable(self.num_epochs * steps_per_epoch, self.written_for, steps_per_epoch)

    def make_method(self, steps_per_epoch: int) -> Method:
        given = {key: value for key, value in self.method.items() if key != "name"}
        return METHODS[self.method_name](**self.timetable(steps_per_epoch).method_fields(given))

    def settings(self) -> Settings:
        """Everything as plain tables, for JSON."""
        made = {f.name: getattr(self, f.name) for f in fields(self)}
        made["optimizer"] = {f.name: getattr(self.optimizer, f.name) for f in fields(Optimizer)}
        made["start"] = {f.name: getattr(self.start, f.name) for f in fields(Start)}
        return made

    @property
    def id(self) -> str:
        """A readable slug and a hash of all that is not default: the same for the same run, always.

        A field that is added later, with a default that changes nothing, leaves the ids of older runs as they are.
        """
        kind = "thin" if self.width == "thin" else self.method_name.lower()
        parts = [self.model, self.data.split(":")[0], kind, f"{self.sparsity:g}" if "sparsity" in self.method else ""]
        said = _not_default(self) | {"method": _not_default_of_method(self.method)}
        said = json.loads(json.dumps(said))  # keys as text, whatever they were
        text = json.dumps(said, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return "-".join([*filter(None, parts), f"seed{self.seed}", digest])


def make_config(settings: Mapping[str, Any]) -> Config:
    """A config out of settings, the paper's for its model and method below them.

    >>> make_config({"method": "DSR", "sparsity": 0.99}).id
    'lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b'
    """
    given = spell_out(settings)
    model = given.setdefault("model", "lenet_300_100")
    check_model_and_method(model, given.get("method", {}))
    check_length_is_told(given)
    is_thin = given.get("width") == "thin"
    below = paper.settings_for(model, given["method"]["name"], is_thin, given.get("stretch"))
    length: Any = given.get("written_for", below["written_for"])
    check_positive("written_for", length)
    return _build(merge(rewritten(below, length), given))


def spell_out(settings: Mapping[str, Any]) -> Settings:
    """Settings in their full form: `method = "DSR"` is its name, `sparsity` a field of the method."""
    given = merge({}, settings)
    if isinstance(given.get("method"), str):
        given["method"] = {"name": given["method"]}
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
    mine = {
        "model": config.model,
        "data": config.data,
        "seed": config.seed,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "precision": config.precision,
        "storage": config.storage,
    }
    if config.width != "thin":
        mine["width"] = config.width
    other = spell_out(config.start.run)
    if other.get("method", {}).get("name") != "Dense" or other.get("width") == "thin":
        mine["sparsity"] = config.sparsity
    return make_config(merge(spell_out(mine), other))


def parent_id(config: Config) -> str | None:
    """The id of the run that this one starts from."""
    parent = parent_of(config)
    return parent.id if parent else config.start.run if isinstance(config.start.run, str) else None


def _build(whole: Settings) -> Config:
    check_fields(whole, Config, "a run")
    for name, part in {"optimizer": Optimizer, "start": Start}.items():
        check_fields(whole.get(name, {}), part, name)
    check_plain_values(whole)
    optimizer = {key: _float(value) for key, value in whole["optimizer"].items()}
    rates = read_schedule("optimizer.lr", whole["optimizer"]["lr"])
    optimizer["lr"] = {first: _float(rate) for first, rate in rates.items()}
    method = {key: _read_field(key, value) for key, value in whole["method"].items() if value is not None}
    if method["name"] == "Dense" and whole.get("width") != "thin":
        method.pop("sparsity", None)  # has no effect there
    start = dict(whole.get("start", {}))
    start["run"] = _in_short(start.get("run"), method.get("sparsity"))
    made = {
        **whole,
        "data": _absolute(whole["data"]),
        "written_for": tidy(whole["written_for"]),
        "stretch": _float(whole.get("stretch", 1.0)),
        "width": _float(whole.get("width", 1.0)),
        "optimizer": Optimizer(**optimizer),
        "method": method,
        "start": Start(**start),
    }
    config = Config(**made)
    check_config(config)
    config.make_method(steps_per_epoch=1000)  # complains about its fields
    return config


# The same settings, however they are spelled, must be the same config, or a run would have several ids.


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


def _absolute(data: Any) -> Any:
    """Data in a folder is the same data from wherever it is named."""
    kind, colon, path = data.partition(":")
    return f"{kind}:{Path(path).expanduser().resolve()}" if kind == "folder" and colon else data


def _not_default(part: Any) -> Settings:
    """The fields that differ from what they would be if nobody had said anything."""
    made: Settings = {}
    for f in fields(part):
        value = getattr(part, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if isinstance(value, (Optimizer, Start)):
            if inner := _not_default(value):
                made[f.name] = inner
        elif value != default:
            made[f.name] = value
    return made


def _not_default_of_method(given: Settings) -> Settings:
    defaults = {f.name: f.default for f in fields(METHODS[given["name"]])}
    return {key: value for key, value in given.items() if key not in defaults or value != defaults[key]}
