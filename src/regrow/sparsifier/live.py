"""All sparsifiers at work: copies of their optimizers bring them, and any optimizer's step asks them whether it may."""

import copy
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from regrow.sparsifier import copies
from regrow.sparsifier.hooks import EveryStep

if TYPE_CHECKING:
    from regrow.sparsifier.steps import Steps

_LIVE: "weakref.WeakSet[Steps]" = weakref.WeakSet()


def enter(steps: "Steps") -> None:
    """From now on it is one of them."""
    copies.guard(steps.optimizer, _copy_all_on)
    _LIVE.add(steps)
    _EVERY_STEP.start()


def leave(steps: "Steps") -> None:
    """Its optimizer is an ordinary one again, unless others ride on it."""
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


def _copy_all_on(optimizer: Optimizer, memo: dict[int, Any]) -> None:
    copy.deepcopy([steps for steps in _LIVE if steps.optimizer is optimizer], memo)


_EVERY_STEP = EveryStep(_check_other)
