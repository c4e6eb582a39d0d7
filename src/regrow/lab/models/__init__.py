"""Networks by name, one file each: plain modules that know nothing of sparsity."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import nn

from regrow.lab.config.component import read_component
from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model, Shape

__all__ = ["PAPER", "Inputs", "Model", "Shape", "build", "initialize", "read_model", "sparse_layers"]

PAPER = ("lenet_300_100", "wrn_28_2", "resnet_50")
"""The paper's networks."""


def read_model(given: str | Mapping[str, Any] | Model) -> Model:
    """A model by its name, or by a table with a name and fields."""
    model: Model = given if isinstance(given, Model) else read_component("model", given)
    return model


def build(
    given: str | Mapping[str, Any] | Model,
    *,
    width: float = 1.0,
    image_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
) -> nn.Module:
    """A freshly initialized network, for what it is usually trained on if nothing else is said; `width` makes it thin.

    >>> sum(p.numel() for p in build("lenet_300_100", width=0.1).parameters())
    24020
    """
    model = read_model(given)
    shape, classes = image_shape or model.usual.image_shape, num_classes or model.usual.num_classes
    return model.build(Shape(tuple(shape), classes), width)


def sparse_layers(model: nn.Module) -> list[str]:
    """Names, as in `model.named_parameters()`, of the tensors that are made sparse."""
    names = getattr(model, "sparse_layers", None)
    if not callable(names):
        raise TypeError(
            f"{type(model).__name__} does not say which of its layers are sparse; give it a method sparse_layers() "
            "that returns their names, such as ['fc1.weight'], or pass the module itself without a wrapper"
        )
    return list(names())


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
