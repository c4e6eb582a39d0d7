"""What is allowed and rarely meant: said in warnings when a network is attached to, or goes on."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from regrow.core.names import unwrap
from regrow.core.row import Tally
from regrow.methods.method import Method

_THIN = 0.05


def hint(sentences: Iterable[str | None]) -> None:
    """Warn where `attach` or `load_state_dict` was called."""
    for sentence in filter(None, sentences):
        warnings.warn(sentence, UserWarning, stacklevel=3)


def of_endless_method(method: Method) -> str | None:
    """A method that is made to rewire less and less, and has no end to do so until."""
    if not method.falls or method.until is not None:
        return None
    name = type(method).__name__
    return (
        f"{name} moves as much to the end of training as at the start, since it has until=None; published results of "
        f"{name} let it fall: give it until=..., e.g. three quarters of your steps"
    )


def of_other_settings(state: Mapping[str, Any], method: Method) -> str | None:
    """A run that goes on by other numbers than those it was saved with; its sparsity is in its budget."""
    was = str(state.get("settings", ""))  # not in every version
    now = {f.name: f"{f.name}={getattr(method, f.name)!r}" for f in fields(method) if f.name != "sparsity"}
    told = {name: said for name, said in now.items() if re.search(rf"\b{name}=", was)}
    changed = [said for said in told.values() if not re.search(rf"\b{re.escape(said)}[,)]", was)]
    if not changed:
        return None
    return (
        f"this run was saved by {was} and goes on with {', '.join(changed)}; if that is not meant, give the method "
        "what it had"
    )


def of_lost_signals(model: nn.Module, tally: Tally) -> str | None:
    """Few first weights as small as those of a dense network, layer after layer, and no norm behind them."""
    density = tally.budget / tally.weights_in(tally.num_units)
    has_norm = any("norm" in type(module).__name__.lower() for module in unwrap(model).modules())
    if density >= _THIN or has_norm or len(tally.active) < 2:
        return None
    return (
        f"with a density of {density:.2g} and no norms, signals fade from layer to layer, and the network may learn "
        'nothing; attach(..., rescale="density") makes first weights as large as that needs'
    )
