"""Where the values of a packed layer belong, in few bytes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.units import Layer
from regrow.kernels.cpu.densify import densify, values_at
from regrow.kernels.cpu.pattern import KERNEL_DTYPES, Pattern, make_pattern
from regrow.storage.packed.renumber import column_order, index_dtype, logical_order, renumber


class Places(ABC):
    """The active places of a layer, in the order in which their values are stored."""

    layer: Layer

    @property
    @abstractmethod
    def count(self) -> int: ...

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory taken by the indices."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def stored(self) -> Tensor:
        """The places numbered so that they ascend."""

    @abstractmethod
    def spread(self, values: Tensor) -> Tensor:
        """The dense tensor with these values, and 0 elsewhere."""

    @abstractmethod
    def collect(self, dense: Tensor) -> Tensor:
        """The values that a dense tensor has at these places."""

    def units(self) -> Tensor:
        """The unit of each value."""
        return renumber(self.stored(), self.layer.shape, column_order(self.layer), self.layer.unit_dims)

    def logical(self) -> Tensor:
        """The places numbered along the tensor's own indices."""
        return renumber(self.stored(), self.layer.shape, column_order(self.layer), logical_order(self.layer))

    def by_unit(self) -> tuple[Tensor, Tensor]:
        """The units, ascending, and which value belongs to each."""
        units, order = self.units().sort()
        return units, order

    def to(self, device: torch.device) -> "Places":
        return self if self.device == device else places_of_stored(self.layer, self.stored().to(device))


@dataclass(frozen=True)
class IndexedPlaces(Places):
    """On a GPU: where each value goes in the memory of the dense weight, 4 bytes each unless the layer is huge."""

    layer: Layer
    index: Tensor

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def num_bytes(self) -> int:
        return self.index.nbytes

    @property
    def device(self) -> torch.device:
        return self.index.device

    def units(self) -> Tensor:
        return self.index.long()

    def stored(self) -> Tensor:
        return stored_of(self.layer, self.units())

    def spread(self, values: Tensor) -> Tensor:
        flat = values.new_zeros(self.layer.num_weights).index_copy_(0, self.units(), values)
        return self.layer.unflatten(flat)

    def collect(self, dense: Tensor) -> Tensor:
        return self.layer.flatten(dense).index_select(0, self.index)


@dataclass(frozen=True)
class PatternPlaces(Places):
    """On a CPU: rows and columns in both orders that the kernels for sparse layers walk in, 2 bytes each mostly."""

    layer: Layer
    pattern: Pattern

    @property
    def count(self) -> int:
        return self.pattern.num_entries

    @property
    def num_bytes(self) -> int:
        return self.pattern.num_bytes

    @property
    def device(self) -> torch.device:
        return self.pattern.rows.device

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickling, which torch has not learnt for 2-byte unsigned numbers (2.13)."""
        return places_of_stored, (self.layer, self.stored())

    def __deepcopy__(self, memo: dict[int, Any]) -> "PatternPlaces":
        """The same, which nobody changes."""
        return self

    def stored(self) -> Tensor:
        return self.pattern.numbered(1, self.pattern.num_rows)

    def logical(self) -> Tensor:
        return self.pattern.numbered(self.pattern.num_columns, 1)

    def units(self) -> Tensor:
        return renumber(self.logical(), self.layer.shape, logical_order(self.layer), self.layer.unit_dims)

    def by_unit(self) -> tuple[Tensor, Tensor]:
        return self.pattern.listed_by_row() if self.layer.unit_dims == logical_order(self.layer) else super().by_unit()

    def spread(self, values: Tensor) -> Tensor:
        if values.dtype in KERNEL_DTYPES:
            return densify(self.pattern, values).view(self.layer.shape)
        flat = values.new_zeros(self.layer.num_weights).index_copy_(0, self.logical(), values)
        return flat.view(self.layer.shape)

    def collect(self, dense: Tensor) -> Tensor:
        if dense.dtype in KERNEL_DTYPES:
            return values_at(self.pattern, dense.reshape(len(dense), -1))
        return dense.reshape(-1).index_select(0, self.logical())


def mark(places: Sequence[Places]) -> int:
    """A number that tells topologies apart: the sum of a random one for every place, the same on every device.

    Of 20 bits, so that it survives whatever may be done to a model's state, being averaged in float32 included.
    """
    sums = [random.bits(random.key(n, *own.layer.shape), own.stored()).sum() for n, own in enumerate(places)]
    return int(torch.stack(sums).sum()) % (1 << 20)


def has_kernels(device: torch.device) -> bool:
    """Whether layers are computed on their values alone there."""
    return device.type == "cpu"


def places_of_stored(layer: Layer, stored: Tensor) -> Places:
    """Places from their ascending stored numbers."""
    if has_kernels(stored.device):
        num_rows = layer.shape[0]
        num_columns = layer.num_weights // num_rows
        return PatternPlaces(layer, make_pattern(stored % num_rows, stored // num_rows, num_rows, num_columns))
    units = renumber(stored, layer.shape, column_order(layer), layer.unit_dims)
    return IndexedPlaces(layer, units.to(index_dtype(layer)))


def overwrite(old: Places, new: Places) -> Places:
    """New places, on a GPU in the memory of the old ones if they fit, since a captured graph goes on reading there."""
    if isinstance(old, IndexedPlaces) and isinstance(new, IndexedPlaces) and old.index.shape == new.index.shape:
        old.index.copy_(new.index)
        return old
    return new


def stored_of(layer: Layer, units: Tensor) -> Tensor:
    """Units as places numbered in the order in which values are stored."""
    return renumber(units, layer.shape, layer.unit_dims, column_order(layer))


def places_of_units(layer: Layer, units: Tensor) -> tuple[Places, Tensor]:
    """Places for some units in any order, and which of them each stored value belongs to."""
    stored, order = stored_of(layer, units).sort()
    return places_of_stored(layer, stored), order


def places_of_ascending(layer: Layer, logical: Tensor) -> tuple[Places, Tensor]:
    """Places for ascending numbers along the tensor's own indices, and which of them each stored value belongs to."""
    if not has_kernels(logical.device):
        return places_of_units(layer, renumber(logical, layer.shape, logical_order(layer), layer.unit_dims))
    num_rows = layer.shape[0]
    num_columns = layer.num_weights // num_rows
    turned = make_pattern(logical % num_columns, logical // num_columns, num_columns, num_rows)
    return PatternPlaces(layer, turned.turned()), turned.listed_by_row()[1]


def places_of_logical(layer: Layer, logical: Tensor) -> Places:
    """Places from numbers along the tensor's own indices, in the order in which they are stored."""
    return places_of_stored(layer, renumber(logical, layer.shape, logical_order(layer), column_order(layer)))
