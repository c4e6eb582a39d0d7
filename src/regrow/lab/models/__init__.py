"""The paper's networks: plain modules that know nothing of sparsity, found by name."""

import difflib
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from regrow.lab.models.initialize import initialize
from regrow.lab.models.lenet import LeNet
from regrow.lab.models.resnet import ResNet
from regrow.lab.models.wide_resnet import WideResNet

__all__ = ["NAMES", "LeNet", "ResNet", "WideResNet", "build", "initialize", "sparse_layers"]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {"lenet_300_100": LeNet, "resnet_50": ResNet}
_WIDE_RESNET = re.compile(r"wrn_(\d+)_(\d+)")
NAMES = ("lenet_300_100", "wrn_28_2", "resnet_50")


def build(name: str, **options: Any) -> nn.Module:
    """A freshly initialized network: "lenet_300_100", "resnet_50" or "wrn_DEPTH_WIDTH"; `width=` makes it thin.

    >>> sum(p.numel() for p in build("lenet_300_100", width=0.1).parameters())
    24020
    """
    wide = _WIDE_RESNET.fullmatch(name)
    if wide:
        return WideResNet(int(wide[1]), int(wide[2]), **options)
    if name in _BUILDERS:
        return _BUILDERS[name](**options)
    nearest = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(NAMES)} and wrn_DEPTH_WIDTH"
    raise ValueError(f"there is no model {name!r}; {hint}")


def sparse_layers(model: nn.Module) -> list[str]:
    """Names, as in `model.named_parameters()`, of the tensors the paper makes sparse."""
    names = getattr(model, "sparse_layers", None)
    if not callable(names):
        raise TypeError(
            f"{type(model).__name__} does not say which of its layers are sparse; "
            "pass a model made by build(), unwrapped, or list the names yourself"
        )
    return list(names())
