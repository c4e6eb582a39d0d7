"""Copies of an optimizer. Torch leaves the hooks behind, and the copy would train all weights without a word."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from torch.optim import Optimizer

Memo = dict[int, Any]


def guard(optimizer: Optimizer, copy_hooks: Callable[[Optimizer, Memo], object]) -> None:
    """Let a deep copy of an optimizer bring what rides on its steps, and let nobody pickle it."""
    optimizer.__dict__["__deepcopy__"] = partial(_deepcopy, optimizer, copy_hooks)
    optimizer.__dict__["__reduce_ex__"] = refuse_pickling


def release(optimizer: Optimizer) -> None:
    """It is an ordinary optimizer again."""
    for name in ("__deepcopy__", "__reduce_ex__"):
        optimizer.__dict__.pop(name, None)


def refuse_pickling(*_: object) -> NoReturn:
    """What happens to an optimizer whose steps are ridden on, and to a sparsifier."""
    raise ValueError(
        "a sparsifier and its optimizer cannot be pickled, because the optimizer would lose its hooks and train all "
        "weights; save the state_dict() of model, optimizer and sparsifier instead, or detach() first"
    )


def _deepcopy(optimizer: Optimizer, copy_hooks: Callable[[Optimizer, Memo], object], memo: Memo) -> Optimizer:
    with _released(optimizer):
        twin = copy.deepcopy(optimizer, memo)
    copy_hooks(optimizer, memo)
    return twin


@contextmanager
def _released(optimizer: Optimizer) -> Iterator[None]:
    kept = {name: optimizer.__dict__.pop(name) for name in ("__deepcopy__", "__reduce_ex__")}
    try:
        yield
    finally:
        optimizer.__dict__ |= kept
