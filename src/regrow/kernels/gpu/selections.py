"""The selections that a GPU does by kernels of its own: the one table on which they hang."""

from collections.abc import Callable
from typing import Any

import torch

from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu.compare import below, smallest
from regrow.kernels.gpu.draw import first_free

_SELECTIONS: dict[str, Callable[..., Any]] = {"below": below, "smallest": smallest, "draw_free": first_free}


def selections_on(device: torch.device) -> dict[str, Callable[..., Any]]:
    """By name; none where there is no Triton."""
    return _SELECTIONS if can_use_triton(device) else {}
