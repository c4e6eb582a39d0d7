"""What makes settings good ones: refused at once, with the next step in the message, before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from regrow.core.names import suggest
from regrow.core.random import NUM_SEEDS
from regrow.lab.config.component import check_single
from regrow.lab.config.places import places_of
from regrow.lab.config.schedule import TIMES, check_schedule, is_schedule
from regrow.lab.config.start import check_choice
from regrow.methods.method import METHODS, is_number, is_whole

if TYPE_CHECKING:
    from regrow.lab.config.config import Config


def check_method_name(method: Mapping[str, Any]) -> None:
    name = method.get("name")
    if name is None:
        raise ValueError(f"say which method, e.g. method=DSR; {suggest('', METHODS)}")
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"there is no method {name!r}; {suggest(str(name), METHODS)}")


def check_fields(given: Mapping[str, Any], kind: type, what: str, told_otherwise: Sequence[str] = ()) -> None:
    """Refuse names that a table does not have, and tables without those it needs."""
    known = [f.name for f in fields(kind)]
    for name, value in given.items():
        if name not in known:
            places = " or ".join(f"{place}={value}" for place in places_of(str(name)))
            hint = f"say {places}" if places else suggest(str(name), known)
            raise ValueError(f"{what} has no field {name!r}; {hint}")
    for f in fields(kind):
        is_needed = f.default is MISSING and f.default_factory is MISSING and f.name not in told_otherwise
        if is_needed and f.name not in given:
            raise ValueError(f"{what} needs {f.name}")


def check_method_fields(method: Mapping[str, Any]) -> None:
    """Refuse lists but where a field is one."""
    defaults = {field.name: field.default for field in fields(METHODS[method["name"]])}
    for key, value in method.items():
        if not isinstance(defaults.get(key), (list, tuple)):
            check_single("sparsity" if key == "sparsity" else f"method.{key}", value)


def check_rest_is_told(given: Mapping[str, Any], model: str) -> None:
    """Of a network that is none of the paper's nothing is known."""
    for name, example in {"data": "data=mnist", "batch_size": "batch_size=100"}.items():
        if name not in given:
            raise ValueError(f"{model} is no network of the paper, so say {name}, e.g. {example}")
    if "epochs" not in given and "max_steps" not in given:
        raise ValueError(f"{model} is no network of the paper, so say epochs or max_steps, e.g. epochs=20")


def check_length_is_told(given: Mapping[str, Any]) -> None:
    """Epochs in schedules mean nothing without the length they were written for."""
    parts = {"optimizer.lr": given.get("optimizer", {}).get("lr"), "learning_rate": given.get("learning_rate")}
    parts |= {f"method.{key}": value for key, value in given.get("method", {}).items()}
    timed = [name for name, value in parts.items() if is_schedule(value)]
    if timed and "epochs" in given and "written_for" not in given:
        raise ValueError(
            f"{timed[0]} is written in epochs: of a training of how many? Set written_for; it stays when epochs is "
            "changed, so that the schedule stretches"
        )


def check_plain_values(whole: Mapping[str, Any]) -> None:
    """Single values that the rest of reading settings relies on."""
    if (whole.get("epochs") is None) == (whole.get("max_steps") is None):
        raise ValueError("say how long to train: epochs or max_steps, and not both")
    for name in ("epochs", "max_steps", "batch_size", "seed"):
        if whole.get(name) is None and name in ("epochs", "max_steps"):
            continue
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
    clip = whole.get("clip")
    if clip is not None:
        check_positive("clip", clip)


def check_positive(name: str, value: Any) -> None:
    if not is_number(value) or value <= 0 or value > 1e6:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_config(config: "Config") -> None:
    """What must fit together in a whole config."""
    check_method_name(config.method)
    config.learning_rate.check_against(config.written_for)
    config.data.check_against(config.model)
    if config.is_thin and (config.method_name != "Dense" or "sparsity" not in config.method):
        raise ValueError(
            'width = "thin" is for the method Dense with a sparsity, that of the sparse network which it is to match'
        )
    check_choice("precision", config.precision, ("float32", "bfloat16"))
    check_choice("storage", config.storage, ("dense", "packed"))
    for key, value in config.method.items():
        if is_schedule(value):
            check_schedule(f"method.{key}", value, config.written_for)
