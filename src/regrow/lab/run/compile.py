"""torch.compile as the lab uses it: for fixed shapes, with kernels that are chosen by rule and not by timing them."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from regrow.kernels.gpu import can_use_triton

F = TypeVar("F", bound=Callable[..., Any])
_MOST_VARIANTS = 1000


def compiled(function: F) -> F:
    """The same, compiled once for all runs in this process that have the same shapes.

    Timing kernels against each other would pick now this and now that one of those that add up in another order, and
    a run would not give the same bits twice. Every network and mode is a variant of one function to torch, which by
    default goes on without compiling, to other bits, after eight.
    """
    from torch._dynamo import config as tracing

    tracing.recompile_limit = tracing.accumulated_recompile_limit = _MOST_VARIANTS
    tracing.fail_on_recompile_limit_hit = True
    return cast(F, torch.compile(function, dynamic=False, options=_options()))


def _options() -> dict[str, Any]:
    options: dict[str, Any] = {"deterministic": True} if chooses_by_rule() else {}
    if has_own_kernels():
        from regrow.lab.run.conv_pass import OWN_WEIGHT_GRADIENTS

        options["post_grad_custom_pre_pass"] = OWN_WEIGHT_GRADIENTS
    return options


def has_own_kernels() -> bool:
    """Whether compiled networks use kernels of ours where they are faster; for older GPUs they were not made."""
    is_there = torch.cuda.is_available() and can_use_triton(torch.device("cuda"))
    return is_there and torch.cuda.get_device_capability() >= (8, 0)


def chooses_by_rule() -> bool:
    """Whether this torch can do without timing kernels (from 2.10 on)."""
    from torch._inductor import config as compiling

    return hasattr(compiling, "deterministic")


def describe_kernels(device: torch.device, is_compiled: bool, precision: str) -> str:
    """How the kernels of a run are chosen, for its provenance."""
    if device.type != "cuda":
        return "torch's own" if not is_compiled else "compiled"
    convolutions = "deterministic cuDNN by its heuristics" if torch.backends.cudnn.deterministic else "cuDNN"
    if not is_compiled:
        return convolutions
    is_own = precision == "bfloat16" and has_own_kernels()
    own = ", weight gradients of few channels by our own" if is_own else ""
    return f"{convolutions}{own}; the rest compiled, {'by rule' if chooses_by_rule() else 'timed at the start'}"
