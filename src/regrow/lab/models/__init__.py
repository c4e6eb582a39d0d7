"""The paper's networks: plain modules that know nothing of sparsity, found by name."""

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import nn

from regrow.core.names import suggest
from regrow.lab.models.initialize import initialize
from regrow.lab.models.lenet import LeNet
from regrow.lab.models.resnet import ResNet
from regrow.lab.models.wide_resnet import WideResNet, check_size

__all__ = [
    "NAMES",
    "LeNet",
    "ResNet",
    "WideResNet",
    "build",
    "check_name",
    "initialize",
    "options_for",
    "sparse_layers",
]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {"lenet_300_100": LeNet, "resnet_50": ResNet}
_WIDE_RESNET = re.compile(r"wrn_(\d+)_(\d+)")
NAMES = ("lenet_300_100", "wrn_28_2", "resnet_50")


def build(name: str, **options: Any) -> nn.Module:
    """A freshly initialized network: "lenet_300_100", "resnet_50" or "wrn_DEPTH_WIDTH"; `width=` makes it thin.

    >>> sum(p.numel() for p in build("lenet_300_100", width=0.1).parameters())
    24020
    """
    check_name(name)
    wide = _WIDE_RESNET.fullmatch(name)
    return WideResNet(int(wide[1]), int(wide[2]), **options) if wide else _BUILDERS[name](**options)


def check_name(name: str) -> None:
    """Refuse a name that no model has."""
    if wide := _WIDE_RESNET.fullmatch(name):
        check_size(int(wide[1]), int(wide[2]))
        return
    if name in _BUILDERS:
        return
    raise ValueError(f"there is no model {name!r}; {suggest(name, (*NAMES, 'wrn_DEPTH_WIDTH'))}")


def options_for(name: str, image_shape: Sequence[int], num_classes: int) -> dict[str, int]:
    """What `build` must be told so that a model fits the images and classes of a data set."""
    inputs = {"in_features": prod(image_shape)} if name == "lenet_300_100" else {"in_channels": image_shape[0]}
    return {**inputs, "num_classes": num_classes}


def sparse_layers(model: nn.Module) -> list[str]:
    """Names, as in `model.named_parameters()`, of the tensors the paper makes sparse."""
    names = getattr(model, "sparse_layers", None)
    if not callable(names):
        raise TypeError(
            f"{type(model).__name__} does not say which of its layers are sparse; "
            "pass a model made by build(), unwrapped, or list the names yourself"
        )
    return list(names())
