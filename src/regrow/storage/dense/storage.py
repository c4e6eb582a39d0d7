"""Dense storage: weights stay the user's ordinary tensors, with zeros; beside each lies a bool mask."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.evidence import Evidence
from regrow.core.parts import MaskedPart, OfChunk, Quantities
from regrow.core.rewire import Plan
from regrow.core.row import Chunk, cut_into_chunks, join
from regrow.core.selections import positions_of
from regrow.core.tally import Tally
from regrow.core.units import Layer, memory_order
from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu.selections import selections_on
from regrow.kernels.gpu.zero import Masks
from regrow.methods.effects.effect import Fresh, Moves
from regrow.storage.base import by_name, check_keys, check_kind, check_like, nothing_called
from regrow.storage.masks import check_masks
from regrow.storage.optimizer_state import state_like


@dataclass
class Beside:
    """A tensor like each layer's weights, and what belongs to units that were pruned."""

    tensors: list[Tensor]
    fresh: Fresh | None


class DenseStorage:
    """The topology of a model, one flat bool tensor per chunk, and every touch of the weights.

    `weights` are the parameters without autograd. `_masks` has one tensor per layer, shaped and laid out like its
    weights: a view of the topology where every weight is a unit, its expansion where units are coarse.
    """

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Tensor], chunk_units: int | None = None) -> None:
        self.parameters = list(parameters)
        self._beside: dict[str, Beside] = {}
        self._gradients: list[Tensor] | None = None  # of all places
        self._active_gradients: list[Tensor] | None = None
        self._chunk_units = chunk_units
        self._lay_out(layers)

    def _lay_out(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self.weights = [parameter.detach() for parameter in self.parameters]
        self._addresses = [weight.data_ptr() for weight in self.weights]
        self.chunks = cut_into_chunks(self.layers, [weight.device for weight in self.weights], self._chunk_units)
        self._active = [torch.ones(chunk.num_units, dtype=torch.bool, device=chunk.device) for chunk in self.chunks]
        self._units = [
            view for chunk, active in zip(self.chunks, self._active, strict=True) for view in chunk.split(active)
        ]
        self._masks = [
            layer.unflatten(units) if layer.is_fine else torch.ones_like(weight, dtype=torch.bool)
            for layer, units, weight in zip(self.layers, self._units, self.weights, strict=True)
        ]
        self._masks_of_chunk = [Masks(chunk.of(self._masks), chunk.device) for chunk in self.chunks]
        flat = [layer.flatten(weight) for layer, weight in zip(self.layers, self.weights, strict=True)]
        self._flat_views = [
            own if own.data_ptr() == weight.data_ptr() else None for own, weight in zip(flat, self.weights, strict=True)
        ]

    def follow(self) -> None:
        if [parameter.data_ptr() for parameter in self.parameters] == self._addresses:
            return
        masks = self._masks
        self._lay_out(
            [
                replace(layer, unit_dims=memory_order(parameter) if layer.is_fine else layer.unit_dims)
                for layer, parameter in zip(self.layers, self.parameters, strict=True)
            ]
        )
        self.set_masks(masks)
        for beside in self._beside.values():
            beside.tensors = [
                torch.empty_like(weight, dtype=old.dtype).copy_(old)
                for weight, old in zip(self.weights, beside.tensors, strict=True)
            ]

    # What is there

    @property
    def index_bytes(self) -> int:
        beside = [tensor for own in self._beside.values() for tensor in own.tensors]
        return sum(tensor.nbytes for tensor in (*self._masks, *beside))

    def count(self) -> list[int]:
        return [int(units.count_nonzero()) for units in self._units]

    def masks(self) -> dict[str, Tensor]:
        return by_name(self.layers, self._masks)

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        return {
            layer.name: [parameter.detach(), *state_like(optimizer, parameter)]
            for layer, parameter in zip(self.layers, self.parameters, strict=True)
        }

    def set_active(self, places: Sequence[Tensor]) -> None:
        """Take over a topology given as the active places of each chunk."""
        for active, own in zip(self._active, places, strict=True):
            active.fill_(False).index_fill_(0, own, True)
        self._expand_coarse()

    def set_masks(self, masks: Sequence[Tensor]) -> None:
        """Take over a topology given as one full-size mask per layer."""
        for layer, units, mask in zip(self.layers, self._units, masks, strict=True):
            units.copy_(layer.reduce(mask))
        self._expand_coarse()

    def _expand_coarse(self) -> None:
        for layer, units, mask in zip(self.layers, self._units, self._masks, strict=True):
            if not layer.is_fine:
                layer.spread(units, mask)

    # What lies beside the weights

    def lay_beside(self, name: str, dtype: torch.dtype | None, fresh: Fresh | None) -> None:
        self._beside[name] = Beside(
            [torch.zeros_like(own, dtype=dtype or _of_gradient(own)) for own in self.weights], fresh
        )

    def beside(self, name: str) -> list[Tensor]:
        return self._beside[name].tensors

    def fill_beside(self, name: str, values: Callable[[Quantities], Tensor]) -> None:
        for chunk, active in zip(self.chunks, self._active, strict=True):
            filled = chunk.split(values(self._all_units(chunk, active)))
            for layer, tensor, own in zip(chunk.layers, chunk.of(self.beside(name)), filled, strict=True):
                tensor.copy_(layer.unflatten(own))

    def add_to_active(self, moves: Moves, rates: Sequence[float]) -> None:
        for chunk, active in zip(self.chunks, self._active, strict=True):
            places = positions_of(active)
            moved = moves(self._units_at(chunk, places), chunk.per_unit(chunk.of(rates), places))
            row = torch.zeros(chunk.num_units, device=chunk.device).index_copy_(0, places, moved)
            views = [layer.unflatten(own) for layer, own in zip(chunk.layers, chunk.split(row), strict=True)]
            torch._foreach_add_(list(chunk.of(self.weights)), views)

    def _all_units(self, chunk: Chunk, active: Tensor) -> OfChunk:
        def look_up(name: str) -> Tensor:
            flat = torch.cat(self._everywhere(chunk, name))
            return flat.masked_fill_(~active, 0) if name == "weight" else flat  # whatever was set there since

        return OfChunk(chunk, look_up)

    def _units_at(self, chunk: Chunk, places: Tensor) -> OfChunk:
        def look_up(name: str) -> Tensor:
            return join(self._everywhere(chunk, name)).index_select(0, places)

        return OfChunk(chunk, look_up, lambda: places)

    def in_one_piece(self) -> tuple[Chunk, Callable[[str], Sequence[Tensor]]] | None:
        chunk = self.chunks[0]
        is_whole = len(self.chunks) == 1 and can_use_triton(chunk.device) and None not in self._flat_views
        if not is_whole or {weight.dtype for weight in self.weights} != {torch.float32}:
            return None

        def tensors(name: str) -> Sequence[Tensor]:
            return self.weights if name == "weight" else self._active if name == "active" else self.beside(name)

        return chunk, tensors

    # A step

    def zero_inactive(self, optimizer: Optimizer) -> None:
        for chunk, masks in zip(self.chunks, self._masks_of_chunk, strict=True):
            pairs = zip(chunk.of(self.parameters), chunk.of(self.weights), strict=True)
            masks.zero_inactive([[weight, *state_like(optimizer, parameter)] for parameter, weight in pairs])

    def prepare_step(self) -> None:
        for chunk, masks in zip(self.chunks, self._masks_of_chunk, strict=True):
            gradients = [parameter.grad for parameter in chunk.of(self.parameters)]
            masks.zero_inactive([[] if gradient is None else [gradient] for gradient in gradients])

    def is_prepared(self, i: int) -> bool:
        gradient = self.parameters[i].grad
        return gradient is None or not bool(gradient.masked_fill(self._masks[i], 0).any())

    def keep_gradients(self, kinds: frozenset[str], fresh: Sequence[int], scale: Tensor | None) -> None:
        if "free_gradient" in kinds:
            self._keep_everywhere(fresh, scale)
        else:
            self._keep_active(fresh, scale)

    def _keep_everywhere(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """Of a gradient that is not fresh, what stands at inactive places, which were 0, came since and is added."""
        if self._gradients is None:
            self._gradients = [torch.zeros_like(weight, dtype=_of_gradient(weight)) for weight in self.weights]
        for i, (parameter, mask) in enumerate(zip(self.parameters, self._masks, strict=True)):
            if parameter.grad is None:
                continue
            gradient = parameter.grad if scale is None else parameter.grad / scale
            if i in fresh:
                self._gradients[i].copy_(gradient)
            else:
                self._gradients[i].add_(gradient.masked_fill(mask, 0))

    def _keep_active(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """A gradient that is not fresh may have been clipped, or got an L1 term: what was kept of it stays."""
        places = [positions_of(units) for units in self._units]
        if self._active_gradients is None:
            pairs = zip(places, self.weights, strict=True)
            self._active_gradients = [w.new_zeros(len(own), dtype=_of_gradient(w)) for own, w in pairs]
        for i in fresh:
            gradient = self.parameters[i].grad
            assert gradient is not None
            kept = self.layers[i].flatten(gradient).index_select(0, places[i])
            self._active_gradients[i].copy_(kept if scale is None else kept / scale)

    def drop_gradients(self) -> None:
        self._gradients = self._active_gradients = None

    def gradients(self) -> Sequence[Tensor] | None:
        return self._gradients

    # Rewiring

    def evidence(self, tally: Tally, step: int) -> Evidence:
        return Evidence(self._parts(tally.active), tally, step)

    def _parts(self, counts: Sequence[int]) -> list[MaskedPart]:
        return [
            self._part(chunk, active, tuple(chunk.of(counts)))
            for chunk, active in zip(self.chunks, self._active, strict=True)
        ]

    def _part(self, chunk: Chunk, active: Tensor, counts: tuple[int, ...]) -> MaskedPart:
        kept = chunk.of(self._active_gradients or [])
        return MaskedPart(
            chunk,
            active,
            counts,
            selections_on(chunk.device),
            lambda name: self._everywhere(chunk, name),
            {"gradient": torch.cat(list(kept))} if kept else {},
        )

    def _everywhere(self, chunk: Chunk, name: str) -> list[Tensor]:
        """A quantity of all places of a chunk, flat, layer by layer; mostly views."""
        if name == "weight":
            parts = zip(chunk.layers, chunk.of(self.weights), chunk.of(self._flat_views), strict=True)
            return [layer.flatten(weight) if view is None else view for layer, weight, view in parts]
        if name == "gradient" and self._gradients is not None:
            tensors = self._gradients
        elif name in self._beside:
            tensors = self.beside(name)
        else:
            raise nothing_called(name)
        return [layer.flatten(tensor) for layer, tensor in zip(chunk.layers, chunk.of(tensors), strict=True)]

    def apply(self, plan: Plan, evidence: Evidence, optimizer: Optimizer) -> None:
        """What comes is 0 already, weight and state, because it was inactive."""
        pruned, grown = evidence.split(plan.pruned), evidence.split(plan.grown)
        for active, out, in_ in zip(self._active, pruned, grown, strict=True):
            active.index_fill_(0, out, False)
            active.index_fill_(0, in_, True)
        self._expand_coarse()
        of_layers = self._per_layer(pruned, plan.pruned.counts)
        self._renew(of_layers)
        if all(can_use_triton(chunk.device) for chunk in self.chunks):
            self.zero_inactive(optimizer)
            return
        for layer, weight, parameter, (units, _) in zip(
            self.layers, self.weights, self.parameters, of_layers, strict=True
        ):
            if len(units):
                for tensor in (weight, *state_like(optimizer, parameter)):
                    layer.put(tensor, units, 0)

    def _per_layer(self, places: Sequence[Tensor], counts: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Places within chunks, in their order, as units of each layer, with the layer's first position in the row."""
        return [
            (units - offset, chunk.start + offset)
            for chunk, own in zip(self.chunks, places, strict=True)
            for units, offset in zip(torch.split(own, list(chunk.of(counts))), chunk.offsets, strict=False)
        ]

    def _renew(self, pruned: Sequence[tuple[Tensor, int]]) -> None:
        for beside in self._beside.values():
            if beside.fresh is not None:
                for layer, tensor, (units, start) in zip(self.layers, beside.tensors, pruned, strict=True):
                    layer.put(tensor, units, beside.fresh(units + start))

    # Saving, copying, taking off

    def state(self) -> dict[str, Any]:
        beside = {name: by_name(self.layers, own.tensors) for name, own in self._beside.items()}
        return {"storage": "dense", "masks": self.masks(), "beside": beside}

    def check(self, state: Mapping[str, Any]) -> list[int]:
        check_kind(state, "dense", {"masks", "beside"})
        check_masks(state["masks"], self.layers)
        check_keys(state["beside"], self._beside, "beside")
        for kind, beside in self._beside.items():
            theirs = state["beside"][kind]
            check_keys(theirs, [layer.name for layer in self.layers], kind)
            for layer, own in zip(self.layers, beside.tensors, strict=True):
                check_like(theirs[layer.name], own, f"{kind} of {layer.name}")
        return [int(layer.reduce(state["masks"][layer.name]).count_nonzero()) for layer in self.layers]

    def load(self, state: Mapping[str, Any]) -> None:
        names = [layer.name for layer in self.layers]
        self.set_masks([state["masks"][name] for name in names])
        for kind, beside in self._beside.items():
            for name, tensor in zip(names, beside.tensors, strict=True):
                tensor.copy_(state["beside"][kind][name])

    def copy(self, memo: dict[int, Any]) -> "DenseStorage":
        return DenseStorage(self.layers, copy.deepcopy(self.parameters, memo), self._chunk_units)

    def release(self, optimizer: Optimizer) -> None:
        """Parameters are ordinary ones, with zeros in them."""


def _of_gradient(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)
