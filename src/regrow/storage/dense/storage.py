"""Dense storage: weights stay the user's ordinary tensors, with zeros; beside each lies a bool mask."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.evidence import Evidence, MaskedPart
from regrow.core.quantities import Quantities
from regrow.core.rewire import Plan
from regrow.core.row import Chunk, Tally, cut_into_chunks
from regrow.core.units import Layer, memory_order
from regrow.distributed.dtensor import gradient_here, laid_out_like, like, local, part_like
from regrow.distributed.sharding import Sharding
from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu.selections import selections_on
from regrow.kernels.gpu.zero import Masks
from regrow.methods.effects.effect import Fresh, Moves
from regrow.storage.base import Beside, Carried, beside, by_name, nothing_called
from regrow.storage.check_masks import check_shapes, check_zeros, num_strays
from regrow.storage.dense.fill import fill, move_active
from regrow.storage.dense.kept_gradients import KeptGradients
from regrow.storage.dense.state import check_state
from regrow.storage.dense.topology import WHOLE, Topology, flat_view, in_pieces
from regrow.storage.dense.zeroed import Zeroed
from regrow.storage.optimizer_state import state_like


class DenseStorage:
    """The topology of a model, and every touch of the weights.

    `layers` are whole; `weights`, masks and whatever lies beside them are what of the parameters is on this rank.
    With a dense step gradients and optimizer state are those of all places, and only weights are 0 elsewhere.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        parameters: Sequence[Tensor],
        chunk_units: int | None = None,
        is_dense_step: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self._is_dense_step = is_dense_step
        self._beside: dict[str, Beside] = {}
        self._carried: WeakSet[Carried] = WeakSet()
        self._kept = KeptGradients()
        self._zeroed: Zeroed | None = None
        self._chunk_units = chunk_units
        self.sharding = Sharding.of(layers, self.parameters)
        self._lay_out(layers)

    def _lay_out(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self.weights = self._local(parameter.detach() for parameter in self.parameters)
        self._addresses = [weight.data_ptr() for weight in self.weights]
        self._here: Sequence[Layer] = self.layers if self.sharding is None else self.sharding.shards
        devices = [weight.device for weight in self.weights]
        cut = partial(cut_into_chunks, self.layers) if self.sharding is None else self.sharding.cut
        self.chunks: Sequence[Chunk] = cut(devices, self._chunk_units)
        self._topology = Topology(self.chunks, self.weights)
        self._masks, self._units = self._topology.masks, self._topology.units
        self._kernels = [selections_on(chunk.device) for chunk in self.chunks]
        self._fast_masks = [
            Masks(chunk.of(self._masks), chunk.device) if can_use_triton(chunk.device) else None
            for chunk in self.chunks
        ]
        self._flat_views = list(map(flat_view, self._here, self.weights))
        self._is_in_one_piece = (
            len(self.chunks) == 1
            and self.sharding is None
            and all(own is not None for own in [*self._fast_masks, *self._flat_views])
            and {weight.dtype for weight in self.weights} == {torch.float32}
        )

    def _local(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """What of them is on this rank."""
        return list(tensors if self.sharding is None else map(local, tensors))

    def follow(self) -> None:
        if [own.data_ptr() for own in self._local(self.parameters)] == self._addresses:
            return
        check_shapes(self.layers, self.parameters)
        masks = self._masks
        self._lay_out(
            [
                replace(layer, unit_dims=memory_order(parameter) if layer.is_fine else layer.unit_dims)
                for layer, parameter in zip(self.layers, self.parameters, strict=True)
            ]
        )
        self._topology.set_masks(masks)
        for own in (*self._beside.values(), *self._carried):
            own.tensors = list(map(laid_out_like, own.tensors, self.weights, self.parameters))

    # What is there

    def check_weights(self) -> None:
        check_zeros(self.layers, self._count_strays())

    def _count_strays(self) -> list[int]:
        counts = list(map(num_strays, self.weights, self._masks))
        return counts if self.sharding is None else self.sharding.total(counts)

    @property
    def index_bytes(self) -> int:
        beside = [tensor for own in self._beside.values() for tensor in own.tensors]
        return sum(tensor.nbytes for tensor in (*self._masks, *beside))

    def count(self) -> list[int]:
        return self._topology.count() if self.sharding is None else self.sharding.count(self._units)

    @property
    def active(self) -> Sequence[Tensor]:
        return self._masks

    def masks(self) -> dict[str, Tensor]:
        return self._by_name(self._masks)

    def _by_name(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Copies, spread over ranks as the parameters are."""
        pairs = zip(by_name(self.layers, tensors).items(), self.parameters, strict=True)
        return {name: like(own, parameter) for (name, own), parameter in pairs}

    def split(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        return {
            layer.name: [parameter.detach(), *state_like(optimizer, parameter)]
            for layer, parameter in zip(self.layers, self.parameters, strict=True)
        }

    def set_active(self, places: Sequence[Tensor]) -> None:
        """Take over a topology given as the active places of each chunk."""
        self._topology.set_places(places)

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Take over a topology given as one mask per layer."""
        self._topology.set_masks(self._here_of(masks))

    # What lies beside the weights

    def carry(self, carried: Carried) -> None:
        self._carried.add(carried)

    def _like(self, i: int, optimizer: Optimizer) -> list[Tensor]:
        """What is 0 where parameter i is not active: itself, its optimizer state, and what is carried."""
        of_optimizer = [] if self._is_dense_step else state_like(optimizer, self.parameters[i])
        return [self.weights[i], *self._local([*of_optimizer, *(own.tensors[i] for own in self._carried)])]

    def lay_beside(self, name: str, dtype: torch.dtype | None, fresh: Fresh | None) -> None:
        self._beside[name] = beside(self.weights, dtype, fresh)

    def beside(self, name: str) -> list[Tensor]:
        return self._beside[name].tensors

    def fill_beside(self, name: str, values: Callable[[Quantities], Tensor]) -> None:
        fill(self.beside(name), values, self.chunks, self._topology.active, self._everywhere)

    def add_to_active(self, moves: Moves, rates: Sequence[float]) -> None:
        move_active(self.weights, moves, rates, self.chunks, self._topology.active, self._everywhere)

    def in_one_piece(self) -> tuple[Chunk, Callable[[str], Sequence[Tensor]]] | None:
        if not self._is_in_one_piece:
            return None
        known = {"weight": self.weights, "active": self._topology.active}
        return self.chunks[0], lambda name: known.get(name) or self.beside(name)

    # A step

    def begin(self, optimizer: Optimizer, factors: Sequence[float]) -> None:
        """Zero what is inactive, for the first time, and multiply what is left of each layer."""
        num_zeroed = sum(self._count_strays())
        self.zero_inactive(optimizer)
        for weight, factor in zip(self.weights, factors, strict=True):
            if factor != 1:
                weight.mul_(factor)
        self._zeroed = Zeroed(self.layers, self.weights, self._masks, num_zeroed) if num_zeroed else None

    def zero_inactive(self, optimizer: Optimizer) -> None:
        self._zero([self._like(i, optimizer) for i in range(len(self.layers))])

    def mask_gradients(self) -> None:
        if not self._is_dense_step:
            self._zero([[] if gradient is None else [gradient] for gradient in self._gradients()])

    def _gradients(self) -> list[Tensor | None]:
        if self.sharding is None:
            return [parameter.grad for parameter in self.parameters]
        return [None if parameter.grad is None else gradient_here(parameter) for parameter in self.parameters]

    def _zero(self, tensors: Sequence[Sequence[Tensor]]) -> None:
        """Multiply by 0 or 1 as whole numbers, which bits are: no NaN is left, and it is faster than choosing."""
        for chunk, fast in zip(self.chunks, self._fast_masks, strict=True):
            some = chunk.of(tensors)
            if fast is not None and fast.zero_inactive(some):
                continue
            if bits := [tensor.view(WHOLE[tensor.itemsize]) for own in some for tensor in own]:
                masks = [mask for own, mask in zip(some, chunk.of(self._masks), strict=True) for _ in own]
                torch._foreach_mul_(*(in_pieces(bits, masks[0]) if len(some) == 1 else (bits, masks)))

    def is_masked(self, i: int) -> bool:
        gradient = None if self._is_dense_step else self._gradients()[i]
        return self._sum(0 if gradient is None else num_strays(gradient, self._masks[i])) == 0

    def _sum(self, count: int) -> int:
        """Of a number on each rank."""
        return count if self.sharding is None else self.sharding.ranks.add_up(count)

    def keep_gradients(self, kinds: frozenset[str], fresh: Sequence[int], scale: Tensor | None) -> None:
        scale = scale if scale is None else local(scale)
        if "free_gradient" in kinds or (self.sharding is not None and self.sharding.is_coarse):
            self._kept.keep_everywhere(self.weights, self._gradients(), self._masks, fresh, scale)
        else:
            self._kept.keep_active(self._here, self.weights, self._gradients(), self._units, fresh, scale)

    def drop_gradients(self) -> None:
        self._kept = KeptGradients()

    def gradients(self) -> Sequence[Tensor] | None:
        return self._kept.everywhere

    # Rewiring

    def evidence(self, tally: Tally, step: int) -> Evidence:
        if self.sharding is None:
            return Evidence(self._parts(tally.active), tally, step)
        return self.sharding.evidence(self._parts(self._topology.count()), tally, step)

    def _parts(self, counts: Sequence[int]) -> list[MaskedPart]:
        everywhere = [partial(self._everywhere, chunk) for chunk in self.chunks]
        kept = [self._kept.of_active(chunk) if self._kept.active else {} for chunk in self.chunks]
        counts_of = [tuple(chunk.of(counts)) for chunk in self.chunks]
        return list(map(MaskedPart, self.chunks, self._topology.active, counts_of, self._kernels, everywhere, kept))

    def _everywhere(self, chunk: Chunk, name: str) -> list[Tensor]:
        """A quantity of all places of a chunk, flat, layer by layer; mostly views."""
        if name == "weight":
            tensors: Sequence[Tensor] = self.weights
            views = [view for view in chunk.of(self._flat_views) if view is not None]
            if len(views) == len(chunk.layers):
                return views
        elif name == "gradient" and self._kept.everywhere is not None:
            tensors = self._kept.everywhere
        elif name in self._beside:
            tensors = self.beside(name)
        else:
            raise nothing_called(name)
        if self.sharding is not None:
            return self.sharding.flatten(name, tensors, chunk.own)
        return [layer.flatten(tensor) for layer, tensor in zip(chunk.layers, chunk.of(tensors), strict=True)]

    def apply(self, plan: Plan, evidence: Evidence, optimizer: Optimizer) -> None:
        """What comes is 0 already, weight and state, because it was inactive; or what a dense step made of it."""
        pruned, grown = evidence.split(plan.pruned), evidence.split(plan.grown)
        counts = evidence.counts_here(plan.pruned)
        for active, out, in_ in zip(self._topology.active, pruned, grown, strict=True):
            active.index_fill_(0, out, False).index_fill_(0, in_, True)
        if not self._topology.is_view:
            self._topology.expand()
        for own in self._beside.values():
            if own.fresh is not None:
                fresh = [own.fresh(chunk.positions(places)) for chunk, places in zip(self.chunks, pruned, strict=True)]
                pairs = zip(self.chunks, fresh, strict=True)
                values = [part for chunk, some in pairs for part in torch.split(some, list(chunk.of(counts)))]
                for i, (units, value) in enumerate(zip(self._per_layer(pruned, counts), values, strict=True)):
                    self._put(i, own.tensors[i], units, value)
        if self._is_dense_step or None not in self._fast_masks:
            self.zero_inactive(optimizer)
            return
        for i, units in enumerate(self._per_layer(pruned, counts)):
            for tensor in self._like(i, optimizer) if len(units) else []:
                self._put(i, tensor, units, 0)

    def _put(self, i: int, tensor: Tensor, units: Tensor, value: float | Tensor) -> None:
        flat = self._flat_views[i]
        if flat is None or tensor.stride() != self.weights[i].stride():
            self._here[i].put(tensor, units, value)
            return
        tensor = tensor.as_strided(flat.shape, flat.stride())  # several times faster on a CPU
        tensor.index_copy_(0, units, value) if isinstance(value, Tensor) else tensor.index_fill_(0, units, value)

    def _per_layer(self, places: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Places within chunks, in their order, as units of each layer."""
        return [
            units - offset
            for chunk, own in zip(self.chunks, places, strict=True)
            for units, offset in zip(torch.split(own, list(chunk.of(counts))), chunk.offsets, strict=False)
        ]

    # Saving, copying, taking off

    def state(self) -> dict[str, Any]:
        beside = {name: self._by_name(own.tensors) for name, own in self._beside.items()}
        return {"storage": "dense", "masks": self.masks(), "beside": beside}

    def check(self, state: Mapping[str, Any]) -> list[int]:
        beside = {name: list(map(like, own.tensors, self.parameters)) for name, own in self._beside.items()}
        counts = check_state(state, self.layers, beside)
        if self._zeroed is not None:
            self._zeroed.check(self._here_of(state["masks"]), self._sum)
        return counts

    def load(self, state: Mapping[str, Any]) -> None:
        self._zeroed = None
        self.set_masks(state["masks"])
        for kind, own in self._beside.items():
            for tensor, theirs in zip(own.tensors, self._here_of(state["beside"][kind]), strict=True):
                tensor.copy_(theirs)

    def _here_of(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Of tensors by name, whole or spread over ranks, what is here."""
        return [part_like(tensors[layer.name], own) for layer, own in zip(self.layers, self.parameters, strict=True)]

    def copy(self, memo: dict[int, Any]) -> "DenseStorage":
        return DenseStorage(self.layers, copy.deepcopy(self.parameters, memo), self._chunk_units, self._is_dense_step)

    def expand(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        return {layer.name: tensor for layer, tensor in zip(self.layers, tensors, strict=True)}

    def release(self, optimizer: Optimizer) -> None:
        """Parameters are ordinary ones, with zeros in them."""
