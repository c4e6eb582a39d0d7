"""A network whose first weights are a function of a seed, whatever it is made of."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model


def build_from_seed(model: Model, inputs: Inputs, width: float, seed: int) -> nn.Module:
    """The network as it draws itself, or as the paper drew it if it is one of the paper's."""
    with _drawing_from(seed):
        network = model.build(inputs, width)
    if model.paper is not None:
        initialize(network, torch.Generator().manual_seed(seed))
    _check_is_drawn(network, str(model))
    return network


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """All global generators that layers draw from begin with this seed, and then go on as if nothing had been.

    Memory that nobody has written to is NaN meanwhile, so that it is found.
    """
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(), torch.get_deterministic_debug_mode()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
        torch.set_deterministic_debug_mode(before[3])


def _check_is_drawn(network: nn.Module, model: str) -> None:
    """Refuse a network with values that do not follow from the seed."""
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} of {model} has no shape yet; say in build() how many inputs its layer has")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} of {model} is on {tensor.device}; build it on the CPU, a run moves it by itself")
        if tensor.isnan().any():
            raise ValueError(
                f"nobody has given {name} of {model} its first values; draw them in build(), e.g. by "
                "torch.nn.init.normal_(parameter, std=0.02)"
            )
