"""torch.compile as the lab uses it: for fixed shapes, with kernels that are chosen by rule and not by timing them."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])
_MOST_VARIANTS = 64


def compiled(function: F) -> F:
    """The same, compiled once for all runs in this process that have the same shapes.

    Timing kernels against each other would pick now this and now that one of those that add up in another order, and
    a run would not give the same bits twice. Every network and mode is a variant of one function to torch, which by
    default gives up compiling after eight.
    """
    from torch._dynamo import config as tracing

    tracing.recompile_limit = max(tracing.recompile_limit, _MOST_VARIANTS)
    options: Any = {"deterministic": True} if chooses_by_rule() else None
    return cast(F, torch.compile(function, dynamic=False, options=options))


def chooses_by_rule() -> bool:
    """Whether this torch can do without timing kernels (from 2.10 on)."""
    from torch._inductor import config as compiling

    return hasattr(compiling, "deterministic")


def describe_kernels(device: torch.device, is_compiled: bool) -> str:
    """How the kernels of a run are chosen, for its provenance."""
    if device.type != "cuda":
        return "torch's own" if not is_compiled else "compiled"
    convolutions = "deterministic cuDNN by its heuristics" if torch.backends.cudnn.deterministic else "cuDNN"
    if not is_compiled:
        return convolutions
    return f"{convolutions}; the rest compiled, {'by rule' if chooses_by_rule() else 'timed at the start'}"
