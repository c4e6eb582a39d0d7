"""A moving average of a network in training, which follows its topology and so stays under its budget."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regrow.core.names import clean, named_parameters, unwrap
from regrow.sparsifier.live import steps_of
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.storage.base import Carried, dtype_of_gradient
from regrow.storage.packed.topology_tag import mark_of

Decay = float | Callable[[int], float]
_KEYS = {"num_updates", "step", "tensors"}


class Average:
    """After each `update` it is decay * average + (1 - decay) * weights; at first it is the weights.

    Where a weight is pruned the average becomes 0 at once, and where one is grown it begins at 0 as the weight does: so
    it has nonzeros where the network has active weights and nowhere else, and in packed storage it is as long as the
    budget. Floating-point buffers (a norm's running statistics) are averaged too; those that hold infinities, and all
    other buffers, are copied. Of weights in half precision the average is in float32.

    - `sparse`: what `regrow.attach` returned; None for a model that is dense.
    - `decay`: in [0, 1), or a function of the number of updates before this one, such as `lambda n: min(0.999,
      (1 + n) / (10 + n))`. `lambda n: n / (n + 1)` makes it the mean of all updates.
    """

    def __init__(self, model: nn.Module, sparse: Sparsifier | None = None, *, decay: Decay = 0.999) -> None:
        _check_arguments(model, sparse, decay)
        self.decay = decay
        self.num_updates = 0
        self._model, self._sparse, self._is_applied = unwrap(model), sparse, False
        self._steps = None if sparse is None else sparse._steps
        name_of = {id(parameter): name for name, parameter in named_parameters(self._model)}
        ours = [] if sparse is None else sparse.storage.parameters
        self._sparse_names = [name_of[id(parameter)] for parameter in ours]
        self._carried = Carried([_begin(parameter) for parameter in ours])
        self._rest = {name: _begin(own) for name, own in _tensors(model).items() if name not in self._sparse_names}
        self._copied = {name for name, own in self._rest.items() if not _can_be_averaged(own)}
        self._num_restarts = 0
        self._belong_here()
        self._carry(self._carried)

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of now into the average: to be called after a step of the optimizer."""
        if self._is_applied:
            raise RuntimeError("the model holds the average itself now; update after the with block")
        if self._sparse is not None:
            self._sparse._check_attached()
        self._check_belongs()
        live = _tensors(self._model)
        self._follow(live)
        own = self._own()
        averaged = [name for name in own if name not in self._copied]
        decay = self.decay(self.num_updates) if callable(self.decay) else self.decay
        _check_decay(decay)
        weights = [live[name].to(own[name].dtype) for name in averaged]
        torch._foreach_lerp_([own[name] for name in averaged], weights, 1 - decay)
        if self._copied:
            torch._foreach_copy_([own[name] for name in self._copied], [live[name] for name in self._copied])
        self.num_updates += 1

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Write the average into the model that it is of, or into a plain one of the same shape."""
        for tensor, average in self._pairs(model):
            tensor.copy_(average)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model holds the average; after it, whatever happened, its own weights to the bit."""
        pairs = self._pairs(model)
        kept, was_applied = [tensor.clone() for tensor, _ in pairs], self._is_applied
        num_sparse = len(self._sparse_names) if self._is_of(model) else 0
        sparse_kept = Carried(kept[:num_sparse])
        if num_sparse:  # should the block train, its rewirings are those of the weights that come back
            self._carry(sparse_kept)
        self._is_applied = True
        try:
            self.apply_to(model)
            yield
        finally:
            with torch.no_grad():
                for (tensor, _), own in zip(pairs, [*sparse_kept.tensors, *kept[num_sparse:]], strict=True):
                    tensor.copy_(own)
            self._is_applied = was_applied

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as numbers and tensors, by the names of parameters and buffers."""
        self._check_belongs()
        tensors = {name: own.clone() for name, own in self._own().items()}
        return {"num_updates": self.num_updates, "step": self._step, "tensors": tensors}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, after the state of the sparsifier that was saved with it was loaded."""
        own = self._own()
        _check_state(state, own)
        if state["step"] != self._step:
            raise ValueError(
                f"the average is of step {state['step']}, the sparsifier is at step {self._step}; load the "
                "sparsifier's state that was saved with it first"
            )
        for name, tensor in own.items():
            tensor.copy_(state["tensors"][name])
        self.num_updates = state["num_updates"]
        self._belong_here()
        if self._steps is not None:
            self._steps.zero_inactive()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Average":
        """Of the copied model: deepcopy it with model, optimizer and sparsifier."""
        self._check_belongs()
        model, sparse = copy.deepcopy((self._model, self._sparse), memo)
        twin = Average(model, sparse, decay=self.decay)
        memo[id(self)] = twin
        twin.load_state_dict(self.state_dict())
        return twin

    def __reduce__(self) -> Any:
        raise TypeError("an average goes with a model in training and is not pickled; save its state_dict()")

    # What it is made of

    @property
    def _step(self) -> int:
        return 0 if self._steps is None else self._steps.number

    def _own(self) -> dict[str, Tensor]:
        """The average by the names of what it is of."""
        return dict(zip(self._sparse_names, self._carried.tensors, strict=True)) | self._rest

    def _dense(self) -> dict[str, Tensor]:
        """The average as a plain model has it."""
        return self._rest | ({} if self._sparse is None else self._sparse.storage.expand(self._carried.tensors))

    def _pairs(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """What a model has, and the average of each; refused if it is another."""
        self._check_belongs()
        if not isinstance(model, nn.Module):
            raise TypeError(f"an average is applied to a torch.nn.Module, got {type(model).__name__}")
        found = _tensors(model)
        averages = self._own() if self._is_of(model) else self._dense()
        if wrong := set(found) ^ set(averages):
            raise ValueError(
                f"the average is not of this model: only one of them has {min(wrong)!r}; apply it to the model that it "
                "follows, or to a plain one of the same shape"
            )
        for name, tensor in found.items():
            if tensor.shape != averages[name].shape:
                raise ValueError(
                    f"the average of {name} has shape {tuple(averages[name].shape)}, the model {tuple(tensor.shape)}; "
                    "apply it to a model of the same shape"
                )
        return [(found[name], own) for name, own in averages.items()]

    # Whether it goes with the topology

    def _is_of(self, model: nn.Module) -> bool:
        """Whether a model has its weights as the average has them."""
        return self._sparse is None or _keeps(self._sparse, model)

    def _carry(self, carried: Carried) -> None:
        if self._steps is not None and self._steps.rewirable is not None:
            self._steps.rewirable.carry(carried)

    def _follow(self, live: Mapping[str, Tensor]) -> None:
        """Go where the model went."""
        if self._steps is not None and self._steps.rewirable is not None:
            self._steps.rewirable.follow()
        pairs = zip(self._sparse_names, self._carried.tensors, strict=True)
        self._carried.tensors = [own.to(live[name].device) for name, own in pairs]
        self._rest = {name: own.to(live[name].device) for name, own in self._rest.items()}

    def _belong_here(self) -> None:
        self._num_restarts = 0 if self._steps is None else self._steps.num_restarts

    def _check_belongs(self) -> None:
        if self._steps is not None and self._num_restarts != self._steps.num_restarts:
            raise RuntimeError(
                "the network took over a saved topology, and the average is of the one before; load the average's "
                "state too, or make a new regrow.Average"
            )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model without autograd, by the names they have without wrappers."""
    parameters = dict(named_parameters(model))
    buffers = {clean(name): buffer for name, buffer in unwrap(model).named_buffers()}
    marks = {mark_of(name) for name in parameters}  # say of which topology packed values are
    return {name: own.detach() for name, own in (parameters | buffers).items() if name not in marks}


def _keeps(sparse: Sparsifier, model: nn.Module) -> bool:
    """Whether a sparsifier keeps this very model sparse now."""
    ours = {id(parameter) for parameter in model.parameters()}
    return sparse._steps.are_on and all(id(parameter) in ours for parameter in sparse.storage.parameters)


def _begin(tensor: Tensor) -> Tensor:
    """The average of one value, as wide as a gradient that is kept, so that small changes count."""
    tensor = tensor.detach()
    return tensor.to(dtype_of_gradient(tensor), copy=True) if tensor.is_floating_point() else tensor.clone()


def _can_be_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isfinite().all())


def _check_arguments(model: object, sparse: object, decay: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if sparse is not None and not isinstance(sparse, Sparsifier):
        raise TypeError(f"sparse must be what regrow.attach returned, or None, got {type(sparse).__name__}")
    if not callable(decay):
        _check_decay(decay)
    if sparse is None and steps_of(list(model.parameters())):
        raise ValueError("this model is kept sparse; pass what regrow.attach returned too: Average(model, sparse)")
    if sparse is not None:
        sparse._check_attached()
        if not _keeps(sparse, model):
            raise ValueError("the sparsifier is of another model; pass the one that it was attached to")


def _check_decay(decay: object) -> None:
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise ValueError(f"decay must be a number in [0, 1), or a function that gives one, got {decay!r}")


def _check_state(state: object, own: Mapping[str, Tensor]) -> None:
    if not isinstance(state, Mapping) or set(state) != _KEYS or not isinstance(state["tensors"], Mapping):
        raise ValueError("this is not the state of an average; pass what Average.state_dict() returned")
    if wrong := set(own) ^ set(state["tensors"]):
        raise ValueError(f"the average is of another model: only one has {min(wrong)!r}; build the same one")
    for name, tensor in own.items():
        theirs = state["tensors"][name]
        if not isinstance(theirs, Tensor) or theirs.shape != tensor.shape or theirs.dtype != tensor.dtype:
            raise ValueError(f"the average of {name} is no {tensor.dtype} {tuple(tensor.shape)}; build the same model")
    if not all(isinstance(state[key], int) and state[key] >= 0 for key in ("num_updates", "step")):
        raise ValueError("the state of the average was changed or damaged after it was saved; load an unchanged one")
