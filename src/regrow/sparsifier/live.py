"""All sparsifiers at work: copies of their optimizers bring them, and any optimizer's step asks them whether it may."""

import copy
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.names import named_parameters
from regrow.distributed.dtensor import is_sharded
from regrow.sparsifier import copies
from regrow.sparsifier.hooks import EveryStep

if TYPE_CHECKING:
    from regrow.sparsifier.steps import Steps

_LIVE: "weakref.WeakSet[Steps]" = weakref.WeakSet()
_WHOLE: "weakref.WeakKeyDictionary[nn.Module, set[str]]" = weakref.WeakKeyDictionary()
"""What was sparse of a model, and no shard, when it was attached to; even if sparsifier and optimizer are gone."""


def enter(steps: "Steps") -> None:
    """From now on it is one of them."""
    copies.guard(steps.optimizer, _copy_all_on)
    _LIVE.add(steps)
    if (model := steps.belonging.model) is not None:
        _WHOLE.setdefault(model, set()).update(
            layer.name
            for layer, own in zip(steps.storage.layers, steps.storage.parameters, strict=False)
            if not is_sharded(own)
        )
    _EVERY_STEP.start()


def leave(steps: "Steps") -> None:
    """Its optimizer is an ordinary one again, unless others ride on it."""
    if steps in _LIVE and (model := steps.belonging.model) is not None:
        _WHOLE.pop(model, None)
    _LIVE.discard(steps)
    if not any(other.optimizer is steps.optimizer for other in _LIVE):
        copies.release(steps.optimizer)
    if not _LIVE:
        _EVERY_STEP.stop()


def steps_of(parameters: Sequence[Tensor]) -> list["Steps"]:
    """Those in which any of these parameters is kept sparse already."""
    ours = {id(parameter) for parameter in parameters}
    return [steps for steps in _LIVE if any(id(p) in ours for p in steps.storage.parameters)]


def _check_other(optimizer: Optimizer) -> None:
    for steps in list(_LIVE):
        steps.belonging.check_other(optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model, names in list(_WHOLE.items()):
        for name, own in named_parameters(model):
            if name in names and id(own) in held and is_sharded(own) and not steps_of([own]):
                raise RuntimeError(
                    f"{name} was sharded after it was attached to, and would be trained densely now; shard the model "
                    "first, build the optimizer then, and attach to both"
                )


def _copy_all_on(optimizer: Optimizer, memo: dict[int, Any]) -> None:
    copy.deepcopy([steps for steps in _LIVE if steps.optimizer is optimizer], memo)


_EVERY_STEP = EveryStep(_check_other)
