"""What a run is: a frozen config, made from settings over the paper's defaults, and its id."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from regrow.lab import models, paper
from regrow.lab.data import check_name as check_data
from regrow.lab.paper import Settings, merge
from regrow.lab.schedule import Timetable, check_schedule, read_schedule
from regrow.methods.method import METHODS, Method
from regrow.names import suggest

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
    model = str(given.setdefault("model", "lenet_300_100"))
    models.check_name(model)
    method = given.get("method", {})
    if "name" not in method:
        raise ValueError(f"say which method, e.g. method=DSR; {suggest('', METHODS)}")
    if method["name"] not in METHODS:
        raise ValueError(f"there is no method {method['name']!r}; {suggest(str(method['name']), METHODS)}")
    is_thin = given.get("width") == "thin"
    _check_written_for(given)
    below = paper.settings_for(model, method["name"], is_thin)
    length: Any = given.get("written_for", below["written_for"])
    _check_positive("written_for", length)
    return _build(merge(paper.rewritten(below, length), given))


def spell_out(settings: Mapping[str, Any]) -> Settings:
    """Settings in their full form: `method = "DSR"` is its name, `sparsity` a field of the method."""
    given = merge({}, settings)
    if isinstance(given.get("method"), str):
        given["method"] = {"name": given["method"]}
    if "sparsity" in given:
        given["method"] = {**given.get("method", {}), "sparsity": given.pop("sparsity")}
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
    }
    other = spell_out(config.start.run)
    if other.get("method", {}).get("name") != "Dense":
        mine["sparsity"] = config.sparsity
    return make_config(merge(spell_out(mine), other))


def _build(whole: Settings) -> Config:
    _check_fields(whole, Config, "a run")
    parts = {"optimizer": Optimizer, "start": Start}
    for name, part in parts.items():
        _check_fields(whole.get(name, {}), part, name)
    optimizer = dict(whole["optimizer"])
    optimizer["lr"] = read_schedule("optimizer.lr", optimizer["lr"])
    method = {key: _read_field(key, value) for key, value in whole["method"].items() if value is not None}
    if method["name"] == "Dense" and whole.get("width") != "thin":
        method.pop("sparsity", None)  # has no effect there
    made = {
        **whole,
        "optimizer": Optimizer(**optimizer),
        "method": method,
        "start": Start(**whole.get("start", {})),
    }
    config = Config(**made)
    _check(config)
    return config


def _read_field(key: str, value: Any) -> Any:
    is_by_epoch = isinstance(value, Mapping) and paper.is_schedule(value)
    return read_schedule(f"method.{key}", value) if is_by_epoch else value


def _check(config: Config) -> None:
    models.check_name(config.model)
    check_data(config.data)
    if config.method_name not in METHODS:
        raise ValueError(f"there is no method {config.method_name!r}; {suggest(config.method_name, METHODS)}")
    for name in ("epochs", "batch_size", "seed"):
        value, least = getattr(config, name), 0 if name == "seed" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    for name in ("stretch", "written_for"):
        _check_positive(name, getattr(config, name))
    is_width = isinstance(config.width, (int, float)) and config.width > 0
    if not is_width and config.width != "thin":
        raise ValueError(f'width must be a positive number or "thin", got {config.width!r}')
    if config.width == "thin" and config.method_name != "Dense":
        raise ValueError(f'width = "thin" is for the method Dense, not {config.method_name}')
    _check_choice("precision", config.precision, ("float32", "bfloat16"))
    _check_choice("start.topology", config.start.topology, ("random", "magnitude", "final", "counts"))
    _check_choice("start.weights", config.start.weights, ("fresh", "initial", "final"))
    looks_back = config.start.topology in ("final", "counts") or config.start.weights != "fresh"
    if looks_back != (config.start.run is not None):
        why = "is not told" if looks_back else "has nothing to give"
        raise ValueError(
            f"start.topology = {config.start.topology!r} with start.weights = {config.start.weights!r}: the other run "
            f'{why}; set start.run to its id or to settings like {{method = "DSR"}} exactly when one is needed'
        )
    check_schedule("optimizer.lr", config.optimizer.lr, config.written_for)
    for key, value in config.method.items():
        if isinstance(value, dict) and paper.is_schedule(value):
            check_schedule(f"method.{key}", value, config.written_for)
    config.make_method(steps_per_epoch=1000)  # complains about its fields


def _check_written_for(given: Mapping[str, Any]) -> None:
    """Epochs in schedules mean nothing without the length they were written for."""
    parts = {"optimizer.lr": given.get("optimizer", {}).get("lr")}
    parts |= {f"method.{key}": value for key, value in given.get("method", {}).items()}
    timed = [name for name, value in parts.items() if isinstance(value, Mapping) and paper.is_schedule(value)]
    if timed and "epochs" in given and "written_for" not in given:
        raise ValueError(
            f"{timed[0]} is written in epochs: of a training of how many? Set written_for; it stays when epochs is "
            "changed, so that the schedule stretches"
        )


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def _check_fields(given: Mapping[str, Any], kind: type, what: str) -> None:
    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}; {suggest(str(name), known)}")
    for f in fields(kind):
        if f.default is MISSING and f.default_factory is MISSING and f.name not in given:
            raise ValueError(f"{what} needs {f.name}")


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
