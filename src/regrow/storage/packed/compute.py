"""What a packed layer computes, on its values alone or with a weight that is dense for a moment."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from regrow.core.units import Layer
from regrow.kernels.cpu.choose import Choices
from regrow.kernels.cpu.functions import (
    Way,
    dense_forward,
    dense_input_gradient,
    dense_weight_gradient,
    sparse_backward,
    sparse_forward,
)
from regrow.kernels.cpu.pattern import KERNEL_DTYPES
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.packed.gradients import Gradient, Product, Whole
from regrow.storage.packed.places import PatternPlaces, Places


class Weights(Protocol):
    """What is asked of a layer's packed weights."""

    @property
    def places(self) -> Places: ...
    @property
    def layer(self) -> Layer: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def wanted(self) -> int: ...
    def look_for_growth(self, gradient: Gradient, use: int) -> None: ...


class Wanted(NamedTuple):
    """Which gradients are asked for, and by which use of the layer in its forward pass."""

    of_input: bool
    of_values: bool
    use: int


def way_of(slot: Weights, x: Tensor, values: Tensor, bias: Tensor | None, how: Convolution | None = None) -> Way:
    """Whether to compute on the values alone."""
    places, dtype = slot.places, x.dtype
    if not isinstance(places, PatternPlaces) or dtype not in KERNEL_DTYPES or x.device.type != "cpu":
        return "dense"
    if values.dtype != dtype or (bias is not None and bias.dtype != dtype):
        return "dense"
    return slot.choices.way(places.pattern, x, how)


def forward(slot: Weights, x: Tensor, values: Tensor, bias: Tensor | None, how: Convolution | None, way: Way) -> Tensor:
    """A linear layer or, if `how` says so, a convolution."""
    if way == "sparse":
        return sparse_forward(_pattern(slot), values, x, bias, how)
    return dense_forward(slot.places.spread(values), x, bias, how)


def backward(
    slot: Weights, x: Tensor, values: Tensor, dy: Tensor, how: Convolution | None, way: Way, wanted: Wanted
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the input and of the values; and, in a step that grows by it, a look at that of free places."""
    dx = dvalues = None
    if way == "sparse":
        if wanted.of_input or wanted.of_values:
            dx, dvalues = sparse_backward(_pattern(slot), values, x, dy, how, wanted.of_input)
        if wanted.of_values and slot.wanted:
            slot.look_for_growth(Product(slot.layer, x, dy, how), wanted.use)
    else:
        if wanted.of_input:
            dx = dense_input_gradient(slot.places.spread(values), x, dy, how)
        if wanted.of_values:
            dvalues = collect(slot, dense_weight_gradient(slot.layer.shape, x, dy, how), wanted.use)
    return dx, dvalues if wanted.of_values else None


def collect(slot: Weights, gradient: Tensor, use: int) -> Tensor:
    """What a dense gradient says of the values; and of free places, in a step that grows by it."""
    if slot.wanted:
        slot.look_for_growth(Whole(slot.layer, gradient), use)
    return slot.places.collect(gradient)


def _pattern(slot: Weights) -> Any:
    assert isinstance(slot.places, PatternPlaces)
    return slot.places.pattern
