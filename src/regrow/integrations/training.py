"""What the callbacks of all trainers have in common: when they attach, and with what they go on."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from regrow.methods.method import Method
from regrow.sparsifier.attach import attach
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.sparsifier.wrapped import owner_of_state


class SparseTraining:
    """Attaches when model and optimizer are there, once for all trainings of the same model."""

    def __init__(self, method: Method | Sparsifier, attach_options: dict[str, Any]) -> None:
        self.sparse: Sparsifier | None = None
        """The sparsifier, once training has begun."""
        if isinstance(method, Sparsifier):
            if attach_options:
                raise ValueError(f"a sparsifier is attached already; leave out {', '.join(attach_options)}")
            self.sparse = method
        else:
            _check_options(method, attach_options)
        self._method, self._options = method, attach_options

    @property
    def _starts_at_random(self) -> bool:
        return bool(self._options.get("start", "random") == "random")

    def _trains(self, model: nn.Module) -> bool:
        """Whether the sparsifier keeps this model sparse."""
        ours = set() if self.sparse is None else {id(parameter) for parameter in self.sparse.storage.parameters}
        return any(id(parameter) in ours for parameter in model.parameters())

    def _begin(self, model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any] | None) -> None:
        """Attach, and go on from a state that was saved, or from where an earlier training of this model ended."""
        before = self.sparse if self._trains(model) else None
        if before is not None and before.optimizer is owner_of_state(optimizer):
            if state is not None:
                before.load_state_dict(state)
            return
        if isinstance(self._method, Sparsifier):
            raise ValueError("the sparsifier rides on another optimizer; let the trainer use the one it is attached to")
        if before is not None:
            state = before.state_dict() if state is None else state
            before.detach()
        options = self._options if state is None else {k: v for k, v in self._options.items() if k != "start"}
        self.sparse = attach(model, optimizer, self._method, **options, resume=state)
        if before is not None:
            self.sparse.on_rewire.extend(before.on_rewire)

    def _metrics(self) -> dict[str, float]:
        """What trainers log, under names that nobody else uses."""
        return {} if self.sparse is None else {f"sparse/{key}": own for key, own in self.sparse.metrics().items()}


def _check_options(method: Method, attach_options: dict[str, Any]) -> None:
    if isinstance(method, type) or not isinstance(method, Method):
        raise TypeError(
            f"method must be one of regrow's, e.g. regrow.DSR(sparsity=0.9), or a sparsifier, got {method!r}"
        )
    inspect.signature(attach).bind(None, None, method, **attach_options)
    if "resume" in attach_options:
        raise ValueError("the trainer's checkpoint brings the state to resume from; leave out resume")
    stored = method.storage or attach_options.get("storage", "dense")
    name = stored if isinstance(stored, str) else getattr(stored, "name", stored)
    if name != "dense":
        raise ValueError(
            f"{name} storage must be in place before a trainer restores and wraps the model; attach yourself, let the "
            "trainer use that optimizer, and pass Sparsify(sparse)"
        )
