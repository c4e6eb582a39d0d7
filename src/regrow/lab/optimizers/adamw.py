"""AdamW (Loshchilov & Hutter, 2019), the usual optimizer of transformers."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from regrow.lab.config.component import component
from regrow.lab.optimizers.optimizer import Optimizer, on_gpu
from regrow.methods.method import is_number


@component
class AdamW(Optimizer):
    """Adaptive moments, with weight decay apart from the gradient."""

    name: ClassVar[str] = "AdamW"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def check(self) -> None:
        is_pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        if not is_pair or not all(is_number(beta) and 0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas must be two numbers in [0, 1), e.g. [0.9, 0.95], got {self.betas!r}")
        self.check_number("eps")
        self.check_number("weight_decay")

    def build(self, parameters: Iterable[nn.Parameter], rate: float, device: torch.device) -> torch.optim.Optimizer:
        fast = on_gpu(device)
        return torch.optim.AdamW(parameters, lr=rate, fused=fast or None, capturable=fast, **self.settings())
