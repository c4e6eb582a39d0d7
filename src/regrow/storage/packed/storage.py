"""Packed storage: what is active is all there is.

The sparse weights of a parameter group are one parameter of the model, `packed_values`, a vector of exactly as many
values as the group's budget; gradient and optimizer state are as long. A rewiring rearranges the vector and edits the
places beside it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import OfChunk, Quantities
from regrow.core.rewire import Plan
from regrow.core.row import Chunk, Tally, cut_into_chunks
from regrow.core.selections import Listed, ascending
from regrow.distributed.average import average
from regrow.kernels.gpu import is_capturing
from regrow.methods.effects.effect import Fresh, Moves
from regrow.storage.base import Beside, Carried, beside, nothing_called
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed.growth import Score, check_sees_all_gradients
from regrow.storage.packed.pack import Pack
from regrow.storage.packed.part import ListedPart, candidates
from regrow.storage.packed.places import places_of_logical, places_of_stored, stored_of
from regrow.storage.packed.renumber import exchange, index_dtype, move
from regrow.storage.packed.slot import Slot
from regrow.storage.packed.state import check_state, kernels_of
from regrow.storage.packed.unpack import Group, unpack


class PackedStorage:
    """The packs of a model, one for each parameter group, and the row that all their layers form together."""

    def __init__(self, model: nn.Module, packs: Sequence[Pack], groups: Sequence[Group]) -> None:
        self.model = model
        self.packs = list(packs)
        self._beside: dict[str, Beside] = {}
        self._carried: WeakSet[Carried] = WeakSet()
        self._gradients: list[Tensor] | None = None
        self._groups = list(groups)
        self._trained = self.parameters
        self._num_begun = [0] * len(self.packs)
        slots = {i: pack.slot(n) for pack, group in zip(packs, groups, strict=True) for n, i in enumerate(group.layers)}
        self.slots = [slots[i] for i in range(len(slots))]
        self.layers = [slot.layer for slot in self.slots]
        self._first_places = list(accumulate((layer.num_weights for layer in self.layers), initial=0))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Which layers of the row are in each pack."""
        return [group.layers for group in self._groups]

    @property
    def parameters(self) -> list[Tensor]:
        return [pack.values for pack in self.packs]

    @property
    def weights(self) -> list[Tensor]:
        return [pack.values.detach() for pack in self.packs]

    @property
    def index_bytes(self) -> int:
        num_beside = sum(vector.nbytes for own in self._beside.values() for vector in own.tensors)
        return num_beside + sum(own.num_bytes for pack in self.packs for own in pack.places)

    def follow(self) -> None:
        for pack in self.packs:
            pack.follow()
        for own in (*self._beside.values(), *self._carried):
            pairs = zip(own.tensors, self.packs, strict=True)
            own.tensors = [vector.to(pack.values.device) for vector, pack in pairs]

    def count(self) -> list[int]:
        return [slot.places.count for slot in self.slots]

    @property
    def active(self) -> list[Tensor]:
        return [torch.ones_like(weights, dtype=torch.bool) for weights in self.weights]

    def masks(self) -> dict[str, Tensor]:
        """Of full size, made for whoever asks."""
        self.follow()
        return self.expand(self.active)

    def expand(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        return {s.layer.name: s.places.spread(own) for s, own in zip(self.slots, self.split(tensors), strict=True)}

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        return {
            slot.layer.name: [
                slot.places.spread(slot.pack.split(tensor)[slot.number])
                for tensor in (slot.pack.values.detach(), *state_like(optimizer, slot.pack.values))
            ]
            for slot in self.slots
        }

    # What lies beside the weights

    def carry(self, carried: Carried) -> None:
        self._carried.add(carried)

    def lay_beside(self, name: str, dtype: torch.dtype | None, fresh: Fresh | None) -> None:
        self._beside[name] = beside(self.weights, dtype, fresh)

    def beside(self, name: str) -> list[Tensor]:
        return self._beside[name].tensors

    def fill_beside(self, name: str, values: Callable[[Quantities], Tensor]) -> None:
        for number, pack in enumerate(self.packs):
            for units, into in zip(self._units_of(number), pack.split(self.beside(name)[number]), strict=True):
                into.copy_(values(units))

    def add_to_active(self, moves: Moves, rates: Sequence[float]) -> None:
        for number, (pack, rate) in enumerate(zip(self.packs, rates, strict=True)):
            for units, values in zip(self._units_of(number), pack.split(pack.values.detach()), strict=True):
                values += moves(units, rate)

    def _units_of(self, number: int) -> Iterator[OfChunk]:
        """The active units of each layer of a pack, in the order in which their values are stored."""
        pack = self.packs[number]
        for n, i in enumerate(self.groups[number]):
            layer, places = self.layers[i], pack.places[n]
            chunk = Chunk(i, self._first_places[i], (layer,), (0, layer.num_units), pack.values.device)
            yield OfChunk(chunk, partial(self._of_layer, number, n), places.units)

    def _of_layer(self, number: int, n: int, name: str) -> Tensor:
        return self.packs[number].split(self._vectors(name)[number])[n]

    def _vectors(self, name: str) -> Sequence[Tensor]:
        """A quantity of the active units, as one vector for each pack."""
        if name == "weight":
            return self.weights
        if name == "gradient" and self._gradients is not None:
            return self._gradients
        if name not in self._beside:
            raise nothing_called(name)
        return self.beside(name)

    def in_one_piece(self) -> None:
        """No: the host rearranges what moves."""

    # A step

    def zero_inactive(self, optimizer: Optimizer) -> None:
        """There are none."""

    def check_weights(self) -> None:
        for pack in self.packs:
            pack.check_belongs()

    def mask_gradients(self) -> None:
        """There are no gradients to mask."""
        self._check_can_step()
        self._num_begun = [pack.begun.number for pack in self.packs]

    def _check_can_step(self) -> None:
        for pack, trained in zip(self.packs, self._trained, strict=True):
            pack.check_belongs()
            if pack.values is not trained:
                raise RuntimeError(
                    f"the model has another {pack.name} than the one its optimizer trains; load its state without "
                    "assign=True"
                )

    def is_masked(self, i: int) -> bool:
        return self.packs[i].begun.number == self._num_begun[i]

    def keep_gradients(self, kinds: frozenset[str], fresh: Sequence[int], scale: Tensor | None) -> None:
        """Of free places the backward pass kept what growth needs."""
        if is_capturing() and ("gradient" in kinds or self.packs[0].sample is None):
            raise ValueError(
                "a captured step cannot look at gradients; use storage='dense' to capture it, or grow by regrow.GSE"
            )
        if "gradient" not in kinds:
            return
        if self._gradients is None:
            self._gradients = beside(self.weights, None, None).tensors
        for i in fresh:
            gradient = self.packs[i].values.grad
            assert gradient is not None
            self._gradients[i].copy_(gradient if scale is None else gradient / scale)

    def drop_gradients(self) -> None:
        self._gradients = None

    def gradients(self) -> None:
        """None are dense."""

    # Rewiring

    def expect_growth(self, counts: Sequence[int], score: Score, among: Units | None = None) -> None:
        if among is None:
            check_sees_all_gradients()
            for pack, group in zip(self.packs, self.groups, strict=True):
                pack.search([counts[i] for i in group], score)
            return
        named = torch.split(among.positions, list(among.counts))
        units = [own - first for own, first in zip(named, self._first_places, strict=False)]
        for pack, group in zip(self.packs, self.groups, strict=True):
            pack.look_at([units[i] for i in group])

    def evidence(self, tally: Tally, step: int) -> Evidence:
        average((pack.sample.seen, pack.values) for pack in self.packs if pack.sample is not None)
        parts = [self._part(chunk, chunk.of(self.slots)) for chunk in self._chunks()]
        return Evidence(parts, tally, step, self.groups if len(self.groups) > 1 else None)

    def _chunks(self) -> tuple[Chunk, ...]:
        return cut_into_chunks(self.layers, [slot.pack.values.device for slot in self.slots])

    def _part(self, chunk: Chunk, slots: Sequence[Slot]) -> ListedPart:
        ordered = [slot.places.by_unit() for slot in slots]
        positions = [units + offset for (units, _), offset in zip(ordered, chunk.offsets, strict=False)]
        number = {id(pack): i for i, pack in enumerate(self.packs)}

        def stored(name: str) -> Tensor:
            pieces = [self._of_layer(number[id(slot.pack)], slot.number, name) for slot in slots]
            return torch.cat([piece.index_select(0, order) for piece, (_, order) in zip(pieces, ordered, strict=True)])

        return ListedPart(
            chunk,
            Listed(torch.cat(positions)),
            tuple(slot.places.count for slot in slots),
            {},
            stored,
            lambda: candidates(chunk, slots),
            is_sample=self.packs[0].sample is not None,
        )

    def apply(self, plan: Plan, evidence: Evidence, optimizer: Optimizer) -> None:
        """Survivors move with their state, what comes starts at 0."""
        chunks = self._chunks()
        pruned, grown = (
            [
                own
                for chunk, some in zip(chunks, evidence.split(units), strict=True)
                for own in chunk.per_layer(ascending(some))
            ]
            for units in (plan.pruned, plan.grown)
        )
        for number, group in enumerate(self.groups):
            if any(len(pruned[i]) or len(grown[i]) for i in group):
                self._rearrange(number, [pruned[i] for i in group], [grown[i] for i in group], optimizer)

    def _rearrange(self, number: int, pruned: Sequence[Tensor], grown: Sequence[Tensor], optimizer: Optimizer) -> None:
        pack = self.packs[number]
        places, sources = [], []
        for old, start, out, in_ in zip(pack.places, pack.starts, pruned, grown, strict=True):
            layer = old.layer
            stored, source = exchange(old.stored(), stored_of(layer, out), stored_of(layer, in_))
            places.append(places_of_stored(layer, stored))
            sources.append(torch.where(source < 0, source, source + start))
        source = torch.cat(sources)
        carried = [own.tensors[number] for own in self._carried]
        for tensor in (pack.values.detach(), *state_like(optimizer, pack.values), pack.values.grad, *carried):
            if tensor is not None:
                move(tensor, source)
        pack.take(places)
        for own in self._beside.values():
            move(own.tensors[number], source)
            if own.fresh is not None:
                self._begin(number, own.tensors[number], source < 0, own.fresh)

    def _begin(self, number: int, vector: Tensor, where: Tensor, fresh: Fresh) -> None:
        pack = self.packs[number]
        parts = zip(self._units_of(number), pack.split(vector), pack.split(where), strict=True)
        for units, own, flags in parts:
            own.masked_scatter_(flags, fresh(units.position[flags]))

    # Saving, copying, taking off

    def state(self) -> dict[str, Any]:
        """Where values belong, layer after layer, in the order in which they are stored."""
        dtype = max((index_dtype(layer) for layer in self.layers), key=lambda dtype: dtype.itemsize)
        return {
            "storage": "packed",
            "counts": tuple(self.count()),
            "positions": torch.cat([slot.places.logical() for slot in self.slots]).to(dtype),
            "kernels": tuple(sorted(self.packs[0].choices.state().items())),
            "beside": self._beside_in_row(),
        }

    def _beside_in_row(self) -> dict[str, Tensor]:
        return {name: torch.cat(self.split(own.tensors)) for name, own in self._beside.items()}

    def split(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Vectors like the values, cut into the layers of the row."""
        of_pack = {id(pack): pack.split(vector) for pack, vector in zip(self.packs, vectors, strict=True)}
        return [of_pack[id(slot.pack)][slot.number] for slot in self.slots]

    def check(self, state: Mapping[str, Any]) -> list[int]:
        rooms = [
            (pack.name, group.layers, len(pack.values)) for pack, group in zip(self.packs, self._groups, strict=True)
        ]
        return check_state(state, self.layers, rooms, self._beside_in_row())

    def load(self, state: Mapping[str, Any]) -> None:
        """Values come with the model's own state."""
        counts = list(state["counts"])
        self.packs[0].choices.load(kernels_of(state))
        positions = torch.split(state["positions"], counts)
        for pack, group in zip(self.packs, self._groups, strict=True):
            given = [(self.layers[i], positions[i].to(pack.values.device).long()) for i in group.layers]
            pack.take([places_of_logical(layer, logical) for layer, logical in given])
        for name, own in self._beside.items():
            parts = torch.split(state["beside"][name], counts)
            own.tensors = [
                torch.cat([parts[i] for i in group.layers]).to(vector)
                for vector, group in zip(own.tensors, self._groups, strict=True)
            ]

    def copy(self, memo: dict[int, Any]) -> "PackedStorage":
        model, packs = copy.deepcopy((self.model, self.packs), memo)
        for pack, twin in zip(self.packs, packs, strict=True):
            pack.copies.discard(twin)  # it is rewired by itself
        return PackedStorage(model, packs, self._groups)

    def release(self, optimizer: Optimizer) -> None:
        """Put dense parameters back, with their state, 0 wherever nothing was stored."""
        for pack in self.packs:
            pack.check_belongs()
        for pack, group in zip(self.packs, self._groups, strict=True):
            unpack(self.model, optimizer, pack, group)
