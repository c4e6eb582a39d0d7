"""The thin dense baseline: the same network, narrower, as large as a sparse one with its bitmask."""

import torch

from regrow.lab.models import Inputs, Model, read_model, sparse_layers


def thin_width(given: str | Model, sparsity: float, inputs: Inputs | None = None) -> float:
    """The width at which the layers that would be sparse have the weights a sparse network's description pays for.

    A sparse layer of N positions costs (1 - s) N values and N bits, that is (1 - s + 1/32) N values. Widths are
    searched by halving; among the networks on both sides of the target the nearer one is taken.

    >>> f"{thin_width('lenet_300_100', 0.9):.3f}"
    '0.145'
    """
    model = read_model(given)
    inputs = inputs or model.usual
    target = min(1.0, 1 - sparsity + 1 / 32) * _num_positions(model, inputs, 1.0)
    low, high = 1e-6, 1.0
    for _ in range(20):  # finer than a channel of any network
        middle = (low + high) / 2
        if _num_positions(model, inputs, middle) < target:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda width: abs(_num_positions(model, inputs, width) - target))


def _num_positions(model: Model, inputs: Inputs, width: float) -> int:
    with torch.device("meta"):  # shapes only
        built = model.build(inputs, width)
    parameters = dict(built.named_parameters())
    return sum(parameters[layer].numel() for layer in sparse_layers(built))
