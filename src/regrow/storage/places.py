"""Where the values of a packed layer belong, in few bytes."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regrow.storage.packing import column_order, index_dtype, logical_order, renumber
from regrow.units import Layer


@dataclass(frozen=True)
class Places:
    """The places of a layer that are active, in the order in which their values are stored.

    Kept as numbers of units, i.e. places in the memory of the dense weight, in 4 bytes each unless the layer is huge.
    """

    layer: Layer
    index: Tensor

    @cached_property
    def count(self) -> int:
        return len(self.index)

    @property
    def num_bytes(self) -> int:
        return self.index.nbytes

    def units(self) -> Tensor:
        """The unit of each value."""
        return self.index.long()

    def stored(self) -> Tensor:
        """The places numbered so that they ascend."""
        return renumber(self.units(), self.layer.shape, self.layer.unit_dims, column_order(self.layer))

    def logical(self) -> Tensor:
        """The places numbered along the tensor's own indices."""
        return renumber(self.units(), self.layer.shape, self.layer.unit_dims, logical_order(self.layer))

    def in_row_order(self) -> tuple[Tensor, Tensor]:
        """The units, ascending, and which value belongs to each."""
        units, order = self.units().sort()
        return units, order

    def to(self, device: torch.device) -> "Places":
        return self if self.index.device == device else Places(self.layer, self.index.to(device))

    def spread(self, values: Tensor) -> Tensor:
        """The dense tensor with these values, and 0 elsewhere."""
        flat = values.new_zeros(self.layer.num_weights).index_copy_(0, self.units(), values)
        return self.layer.unflatten(flat)

    def collect(self, dense: Tensor) -> Tensor:
        """The values that a dense tensor has at these places."""
        return self.layer.flatten(dense).index_select(0, self.index)


def places_of_units(layer: Layer, units: Tensor) -> tuple[Places, Tensor]:
    """Places for some units in any order, and which of them each stored value belongs to."""
    stored, order = renumber(units, layer.shape, layer.unit_dims, column_order(layer)).sort()
    return places_of_stored(layer, stored), order


def places_of_stored(layer: Layer, stored: Tensor) -> Places:
    """Places from their ascending stored numbers."""
    units = renumber(stored, layer.shape, column_order(layer), layer.unit_dims)
    return Places(layer, units.to(index_dtype(layer)))


def places_of_logical(layer: Layer, logical: Tensor) -> Places:
    """Places from numbers along the tensor's own indices, in the order in which they are stored."""
    return Places(layer, renumber(logical, layer.shape, logical_order(layer), layer.unit_dims).to(index_dtype(layer)))
