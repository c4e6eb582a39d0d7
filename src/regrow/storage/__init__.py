"""Where the weights live: one folder for each storage, and here the table of all."""

from regrow.storage.base import StorageKind
from regrow.storage.dense.kind import Dense
from regrow.storage.hashed.kind import Hashed
from regrow.storage.packed.kind import Packed

STORAGES: dict[str, StorageKind] = {kind.name: kind for kind in (Dense(), Packed(), Hashed())}
"""By name. Hashed is one that a method brings with it."""
