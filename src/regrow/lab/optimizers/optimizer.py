"""What every optimizer of the lab is made of."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from regrow.lab.config.component import Component


class Optimizer(Component):
    """Makes an optimizer of torch."""

    kind: ClassVar[str] = "optimizer"

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter], rate: float, device: torch.device) -> torch.optim.Optimizer:
        """One that trains these, at first with this learning rate.

        On a GPU it is captured into a graph, and its learning rate becomes a tensor there.
        """


def on_gpu(device: torch.device) -> bool:
    """Where the fused kernels are, which alone take a learning rate from the device."""
    return device.type == "cuda"
