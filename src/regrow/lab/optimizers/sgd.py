"""Stochastic gradient descent, the paper's optimizer."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from regrow.lab.config.component import component
from regrow.lab.optimizers.optimizer import Optimizer, on_gpu


@component
class SGD(Optimizer):
    """With momentum, by default Nesterov's."""

    name: ClassVar[str] = "SGD"

    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0

    def check(self) -> None:
        self.check_number("momentum", below=1)
        self.check_number("weight_decay")
        if not isinstance(self.nesterov, bool) or (self.nesterov and self.momentum == 0):
            raise ValueError(
                f"optimizer.nesterov must be true or false, and false without momentum; got {self.nesterov!r} with "
                f"momentum {self.momentum!r}"
            )

    def build(self, parameters: Iterable[nn.Parameter], rate: float, device: torch.device) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, fused=on_gpu(device) or None, **self.settings())
