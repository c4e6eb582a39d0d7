"""Packed storage: what is active is all there is.

The sparse weights of a parameter group are one parameter of the model, `packed_values`, a vector of exactly as many
values as the group's budget; gradient and optimizer state are as long. A rewiring rearranges the vector and edits the
places beside it.
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.evidence import Candidates, ListedStretch
from regrow.core.rewire import Plan
from regrow.core.row import Chunk, Listed, check_finite, cut_into_chunks
from regrow.core.selections import ascending
from regrow.core.units import Layer
from regrow.kernels.gpu.deepr_walk import Walk
from regrow.methods.method import Method
from regrow.sparsifier.hooks import is_capturing
from regrow.sparsifier.state import check_positions
from regrow.storage.optimizer_state import state_like
from regrow.storage.packed.growth import Search, check_sees_all_gradients
from regrow.storage.packed.pack import Pack, Slot
from regrow.storage.packed.places import places_of_logical, places_of_stored
from regrow.storage.packed.renumber import column_order, exchange, index_dtype, move, renumber
from regrow.storage.packed.unpack import Group, unpack


class PackedStorage:
    """The packs of a model, one for each parameter group, and the row that all their layers form together.

    `companions` are vectors like the values: the signs of DeepR.
    """

    def __init__(self, model: nn.Module, packs: Sequence[Pack], groups: Sequence[Group], seed: int) -> None:
        self.model = model
        self.packs = list(packs)
        self.companions: dict[str, list[Tensor]] = {}
        self._groups = list(groups)
        self._trained = self.parameters
        self._num_begun = [0] * len(self.packs)
        self._seed = seed
        self._has_fresh_signs = False
        slots = {
            i: Slot(pack, n) for pack, group in zip(packs, groups, strict=True) for n, i in enumerate(group.layers)
        }
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
        beside = [vector for vectors in self.companions.values() for vector in vectors]
        places = [own for pack in self.packs for own in pack.places]
        return sum(own.num_bytes for own in places) + sum(vector.nbytes for vector in beside)

    def follow(self) -> None:
        """Follow the values to another device."""
        for i, pack in enumerate(self.packs):
            pack.follow()
            for tensors in self.companions.values():
                if tensors:
                    tensors[i] = tensors[i].to(pack.values.device)

    def count(self) -> list[int]:
        return [slot.places.count for slot in self.slots]

    def named_masks(self) -> dict[str, Tensor]:
        """Masks of full size, made for whoever asks."""
        return {
            slot.layer.name: slot.places.spread(torch.ones(n, dtype=torch.bool, device=slot.places.device))
            for slot, n in zip(self.slots, self.count(), strict=True)
        }

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        return {
            slot.layer.name: [
                slot.places.spread(slot.pack.split(tensor)[slot.number])
                for tensor in (slot.pack.values.detach(), *state_like(optimizer, slot.pack.values))
            ]
            for slot in self.slots
        }

    def zero_inactive(self, optimizer: Optimizer) -> None:
        """There are none."""

    def mask_gradients(self) -> None:
        """There are none to mask. But before the first step weights may still have changed since they were packed."""
        self._check_can_step()
        self._num_begun = [pack.begun.number for pack in self.packs]
        if self._has_fresh_signs:
            self.fix_signs(self._seed)
            self._has_fresh_signs = False

    def _check_can_step(self) -> None:
        for pack, trained in zip(self.packs, self._trained, strict=True):
            pack.check_belongs()
            if pack.values is not trained:
                raise RuntimeError(
                    f"the model has another {pack.name} than the one its optimizer trains; load its state without "
                    "assign=True"
                )

    def is_masked(self, i: int) -> bool:
        """Whether it is still, if perhaps in another tensor, the gradient that was there when this was last done."""
        return self.packs[i].begun.number == self._num_begun[i]

    # Rewiring

    def expect_growth(self, wanted: Sequence[int]) -> None:
        check_sees_all_gradients()
        for slot, count in zip(self.slots, wanted, strict=True):
            slot.pack.searches[slot.number] = Search(count)

    def keep_gradients(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """The backward pass kept what growth needs."""
        if is_capturing():
            raise ValueError("a captured step cannot look for places to grow; use storage='dense' to capture it")
        self.companions["gradient"] = []

    def fold_gradients(self, memory: float) -> None:
        raise NotImplementedError("a running mean of dense gradients has an entry for every place; `attach` refuses it")

    def stretches(self, counts: Sequence[int]) -> list[ListedStretch]:
        return [self._stretch(chunk, chunk.of(self.slots)) for chunk in self._chunks()]

    def _chunks(self) -> tuple[Chunk, ...]:
        return cut_into_chunks(self.layers, [slot.pack.values.device for slot in self.slots])

    def _stretch(self, chunk: Chunk, slots: Sequence[Slot]) -> ListedStretch:
        ordered = [slot.places.in_row_order() for slot in slots]
        positions = [units + offset for (units, _), offset in zip(ordered, chunk.offsets, strict=False)]

        def in_row_order(vectors: Mapping[int, Tensor]) -> Tensor:
            pieces = [slot.pack.split(vectors[id(slot.pack)])[slot.number] for slot in slots]
            return torch.cat([piece.index_select(0, order) for piece, (_, order) in zip(pieces, ordered, strict=True)])

        def values() -> Tensor:
            return in_row_order({id(pack): pack.values.detach() for pack in self.packs})

        def signs() -> Tensor:
            vectors = zip(self.packs, self.companions["signs"], strict=True)
            return in_row_order({id(pack): vector for pack, vector in vectors})

        return ListedStretch(
            chunk,
            Listed(torch.cat(positions)),
            tuple(slot.places.count for slot in slots),
            values,
            signs,
            lambda: _candidates(chunk, slots),
        )

    def apply(self, plan: Plan, optimizer: Optimizer) -> None:
        """Carry out a rewiring: survivors move with their state, what comes starts at 0."""
        chunks = self._chunks()
        gone = [part for chunk, places in zip(chunks, plan.gone, strict=True) for part in _per_layer(chunk, places)]
        come = [part for chunk, places in zip(chunks, plan.come, strict=True) for part in _per_layer(chunk, places)]
        for number, group in enumerate(self.groups):
            if any(len(gone[i]) or len(come[i]) for i in group):
                self._rearrange(number, [gone[i] for i in group], [come[i] for i in group], optimizer)

    def _rearrange(self, number: int, gone: Sequence[Tensor], come: Sequence[Tensor], optimizer: Optimizer) -> None:
        pack = self.packs[number]
        places, sources = [], []
        for old, start, out, in_ in zip(pack.places, pack.starts, gone, come, strict=True):
            layer = old.layer
            stored, source = exchange(old.stored(), _to_stored(layer, out), _to_stored(layer, in_))
            places.append(places_of_stored(layer, stored))
            sources.append(torch.where(source < 0, source, source + start))
        source = torch.cat(sources)
        for tensor in (pack.values.detach(), *state_like(optimizer, pack.values), pack.values.grad):
            if tensor is not None:
                move(tensor, source)
        pack.take(places)
        for tensors in (vectors for kind, vectors in self.companions.items() if kind == "signs"):
            move(tensors[number], source)
            self._toss_coins(number, tensors[number], source < 0)

    # Signs and noise

    def fix_signs(self, seed: int) -> None:
        """Give every weight the side of zero it is on, and every other place one at random."""
        self._seed, self._has_fresh_signs = seed, True
        self.companions["signs"] = [pack.values.detach() > 0 for pack in self.packs]
        for number, pack in enumerate(self.packs):
            self._toss_coins(number, self.companions["signs"][number], pack.values.detach() == 0)

    def _toss_coins(self, number: int, signs: Tensor, where: Tensor) -> None:
        pack, group = self.packs[number], self.groups[number]
        for places, i, own, flags in zip(pack.places, group, pack.split(signs), pack.split(where), strict=True):
            coins = random.coins(self._seed, places.units()[flags] + self._first_places[i])
            own.masked_scatter_(flags, coins)

    def walk(self, method: Method, rates: Sequence[float], step: int, seed: int) -> None:
        for pack, group, signs, rate in zip(self.packs, self.groups, self.companions["signs"], rates, strict=True):
            parts = zip(pack.places, group, pack.split(pack.values.detach()), pack.split(signs), strict=True)
            for places, i, values, sides in parts:
                noise = random.normal(random.key(seed, step, 1), places.units() + self._first_places[i])
                values += method.walk(sides, noise, rate, step)

    def make_walk(self, last: Walk | None) -> Walk | None:
        """None: the host rearranges what moves."""
        return None

    # Saving, copying, taking off

    def state(self) -> dict[str, Any]:
        """Of each layer where its values belong, in the order in which they are stored."""
        lasting = {kind: vectors for kind, vectors in self.companions.items() if kind != "gradient"}
        return {
            "masks": {},
            "kernels": self.packs[0].choices.state(),
            "positions": {slot.layer.name: slot.places.logical().to(index_dtype(slot.layer)) for slot in self.slots},
            "companions": {kind: self._by_name(vectors) for kind, vectors in lasting.items()},
        }

    def _by_name(self, vectors: Sequence[Tensor]) -> dict[str, Tensor]:
        of_pack = {id(pack): pack.split(vector) for pack, vector in zip(self.packs, vectors, strict=True)}
        return {slot.layer.name: of_pack[id(slot.pack)][slot.number].clone() for slot in self.slots}

    def check(self, state: Mapping[str, Any], keeps_budget: bool) -> None:
        check_positions(state, self.layers)
        for pack, group in zip(self.packs, self._groups, strict=True):
            given = sum(len(state["positions"][self.layers[i].name]) for i in group.layers)
            if given != len(pack.values):
                raise ValueError(
                    f"the state has {given:,} active weights where {group.name} has room for {len(pack.values):,}; "
                    "attach with the same sparsity and parameter groups"
                )

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over topology and companions; values come with the model's own state."""
        self._seed, self._has_fresh_signs = state["seed"], False
        self.packs[0].choices.load(state["kernels"])
        for pack, group in zip(self.packs, self._groups, strict=True):
            given = [(self.layers[i], state["positions"][self.layers[i].name]) for i in group.layers]
            pack.take([places_of_logical(layer, logical.to(pack.values.device).long()) for layer, logical in given])
        self.companions = {
            kind: [
                torch.cat([parts[self.layers[i].name] for i in group.layers]).to(pack.values.device)
                for pack, group in zip(self.packs, self._groups, strict=True)
            ]
            for kind, parts in state["companions"].items()
        }

    def copy(self, memo: dict[int, Any]) -> "PackedStorage":
        model, packs = copy.deepcopy((self.model, self.packs), memo)
        return PackedStorage(model, packs, self._groups, self._seed)

    def release(self, optimizer: Optimizer) -> None:
        """Put dense parameters back, with their state, 0 wherever nothing was stored."""
        for pack in self.packs:
            pack.check_belongs()
        for pack, group in zip(self.packs, self._groups, strict=True):
            unpack(self.model, optimizer, pack, group)


def _candidates(chunk: Chunk, slots: Sequence[Slot]) -> Candidates:
    """What the last backward pass found; refused if its gradients were not finite."""
    best = [slot.search.result(slot.places) for slot in slots]
    extremes = torch.stack([found.extreme.double() for found in best])
    check_finite(extremes, chunk.layers, [1] * len(slots), "gradients")
    return Candidates(
        torch.cat([found.places + offset for found, offset in zip(best, chunk.offsets, strict=False)]),
        torch.cat([found.scores for found in best]),
        [len(found.places) for found in best],
    )


def _per_layer(chunk: Chunk, places: Tensor) -> list[Tensor]:
    """Places of a chunk as those of each of its layers, ascending."""
    places = ascending(places)
    parts = torch.split(places, chunk.count_per_layer(places))
    return [part - offset for part, offset in zip(parts, chunk.offsets, strict=False)]


def _to_stored(layer: Layer, units: Tensor) -> Tensor:
    return renumber(units, layer.shape, layer.unit_dims, column_order(layer))
