"""What makes settings good ones: refused at once, with the next step in the message, before anything is written."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from regrow.core.names import suggest
from regrow.core.random import NUM_SEEDS
from regrow.lab import models
from regrow.lab.config.schedule import TIMES, check_schedule, is_schedule
from regrow.lab.data import check_name as check_data
from regrow.methods.method import METHODS, is_number, is_whole

if TYPE_CHECKING:
    from regrow.lab.config.config import Config


def check_model_and_method(model: Any, method: Mapping[str, Any]) -> None:
    if not isinstance(model, str):
        raise ValueError(f"model must be a name, got {model!r}")
    models.check_name(model)
    name = method.get("name")
    if name is None:
        raise ValueError(f"say which method, e.g. method=DSR; {suggest('', METHODS)}")
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"there is no method {name!r}; {suggest(str(name), METHODS)}")


def check_fields(given: Mapping[str, Any], kind: type, what: str) -> None:
    """Refuse names that a table does not have, and tables without those it needs."""
    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}; {suggest(str(name), known)}")
    for f in fields(kind):
        if f.default is MISSING and f.default_factory is MISSING and f.name not in given:
            raise ValueError(f"{what} needs {f.name}")


def check_length_is_told(given: Mapping[str, Any]) -> None:
    """Epochs in schedules mean nothing without the length they were written for."""
    parts = {"optimizer.lr": given.get("optimizer", {}).get("lr")}
    parts |= {f"method.{key}": value for key, value in given.get("method", {}).items()}
    timed = [name for name, value in parts.items() if is_schedule(value)]
    if timed and "epochs" in given and "written_for" not in given:
        raise ValueError(
            f"{timed[0]} is written in epochs: of a training of how many? Set written_for; it stays when epochs is "
            "changed, so that the schedule stretches"
        )


def check_plain_values(whole: Mapping[str, Any]) -> None:
    """Single values that the rest of reading settings relies on."""
    if not isinstance(whole["data"], str):
        raise ValueError(f"data must be a name, got {whole['data']!r}")
    for name in ("epochs", "batch_size", "seed"):
        value, least = whole.get(name, 0), {"seed": 0, "batch_size": 2}.get(name, 1)  # norms need two images
        if not is_whole(value) or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    if whole.get("seed", 0) >= NUM_SEEDS:
        raise ValueError(
            f"seed must be less than 2**64, got {whole['seed']!r}; larger ones would be smaller ones again"
        )
    for name in ("stretch", "written_for"):
        check_positive(name, whole.get(name, 1.0))
    width = whole.get("width", 1.0)
    if width != "thin" and not (is_number(width) and 0 < width <= 100):
        raise ValueError(f'width must be a positive number up to 100, or "thin", got {width!r}')
    for name in TIMES:
        value = whole["method"].get(name)
        if value is not None and not (is_number(value) and 0 <= value <= whole["written_for"]):
            raise ValueError(
                f"method.{name} must be an epoch between 0 and {whole['written_for']}, the length that schedules are "
                f"written for (written_for), got {value!r}"
            )
    run = whole.get("start", {}).get("run")
    if run is not None and not isinstance(run, (str, Mapping)):
        raise ValueError(f'start.run must be an id or settings like {{method = "DSR"}}, got {run!r}')


def check_positive(name: str, value: Any) -> None:
    if not is_number(value) or value <= 0 or value > 1e6:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_config(config: "Config") -> None:
    """What must fit together in a whole config."""
    check_model_and_method(config.model, config.method)
    check_data(config.data)
    _check_optimizer(config)
    if config.width == "thin" and (config.method_name != "Dense" or "sparsity" not in config.method):
        raise ValueError(
            'width = "thin" is for the method Dense with a sparsity, that of the sparse network which it is to match'
        )
    _check_choice("precision", config.precision, ("float32", "bfloat16"))
    _check_choice("storage", config.storage, ("dense", "packed"))
    _check_choice("start.topology", config.start.topology, ("random", "magnitude", "final", "counts"))
    _check_choice("start.weights", config.start.weights, ("fresh", "initial", "final"))
    looks_back = config.start.topology in ("final", "counts") or config.start.weights != "fresh"
    if looks_back != (config.start.run is not None):
        why = "is not told" if looks_back else "has nothing to give"
        raise ValueError(
            f"start.topology = {config.start.topology!r} with start.weights = {config.start.weights!r}: the other run "
            f'{why}; set start.run to its id or to settings like {{method = "DSR"}} exactly when one is needed'
        )
    for key, value in config.method.items():
        if is_schedule(value):
            check_schedule(f"method.{key}", value, config.written_for)


def _check_optimizer(config: "Config") -> None:
    optimizer = config.optimizer
    check_schedule("optimizer.lr", optimizer.lr, config.written_for)
    for rate in optimizer.lr.values():
        if not is_number(rate) or rate < 0:
            raise ValueError(f"optimizer.lr must be numbers >= 0, got {rate!r}")
    if not is_number(optimizer.momentum) or not 0 <= optimizer.momentum < 1:
        raise ValueError(f"optimizer.momentum must be in [0, 1), got {optimizer.momentum!r}")
    if not is_number(optimizer.weight_decay) or optimizer.weight_decay < 0:
        raise ValueError(f"optimizer.weight_decay must be a number >= 0, got {optimizer.weight_decay!r}")
    if not isinstance(optimizer.nesterov, bool) or (optimizer.nesterov and optimizer.momentum == 0):
        raise ValueError(
            f"optimizer.nesterov must be true or false, and false without momentum; got {optimizer.nesterov!r} with "
            f"momentum {optimizer.momentum!r}"
        )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
