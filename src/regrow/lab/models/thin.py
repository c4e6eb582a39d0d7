"""The thin dense baseline: the same network, narrower, as large as a sparse one with its bitmask."""

from typing import Any

import torch

from regrow.lab.models import build, sparse_layers


def thin_width(name: str, sparsity: float, **options: Any) -> float:
    """The width at which the layers that would be sparse have the weights a sparse network's description pays for.

    A sparse layer of N positions costs (1 - s) N values and N bits, that is (1 - s + 1/32) N values. Widths are
    searched by halving; among the networks on both sides of the target the nearer one is taken.

    >>> f"{thin_width('lenet_300_100', 0.9):.3f}"
    '0.145'
    """
    target = min(1.0, 1 - sparsity + 1 / 32) * _num_positions(name, 1.0, **options)
    low, high = 1e-6, 1.0
    for _ in range(20):  # finer than a channel of any network
        middle = (low + high) / 2
        if _num_positions(name, middle, **options) < target:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda width: abs(_num_positions(name, width, **options) - target))


def _num_positions(name: str, width: float, **options: Any) -> int:
    with torch.device("meta"):  # shapes only
        model = build(name, width=width, **options)
    parameters = dict(model.named_parameters())
    return sum(parameters[layer].numel() for layer in sparse_layers(model))
