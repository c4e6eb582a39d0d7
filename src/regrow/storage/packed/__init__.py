"""Packed storage: of sparse layers the active weights are all there is."""

from regrow.storage.packed.kind import Packed
from regrow.storage.packed.norm_block import linear_norm

__all__ = ["Packed", "linear_norm"]
