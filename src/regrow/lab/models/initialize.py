"""The paper's starting weights, the same rule for each of its networks."""

import math

import torch
from torch import nn


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw fresh weights: convolutions He-normal on the dense fan-out, linear U(+-1/sqrt(fan_in)), norms 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
            module.reset_running_stats()
