"""Dense storage: weights stay the user's ordinary tensors, with zeros; beside each lies a bool mask."""

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.evidence import FlaggedStretch
from regrow.core.rewire import Plan
from regrow.core.row import Chunk, Stretch, check_finite, cut_into_chunks
from regrow.core.selections import positions_of
from regrow.core.units import Layer, memory_order
from regrow.kernels.gpu import can_use_triton
from regrow.kernels.gpu.deepr_walk import Walk
from regrow.kernels.gpu.zero import Masks
from regrow.methods.method import Method
from regrow.sparsifier.state import check_topology
from regrow.storage.base import by_name
from regrow.storage.optimizer_state import state_like


class DenseStorage:
    """The topology of a model, one flat bool tensor per chunk, and every touch of the weights.

    `weights` are the parameters without autograd. `masks` has one tensor per layer, shaped and laid out like its
    weights: a view of the topology where every weight is a unit, its expansion where units are coarse. `companions`
    are further tensors with an entry for every weight (the signs of DeepR, a gradient kept for growth).
    """

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Tensor], chunk_units: int | None = None) -> None:
        self.parameters = list(parameters)
        self.companions: dict[str, list[Tensor]] = {}
        self._chunk_units = chunk_units
        self._lay_out(layers)

    def _lay_out(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self.weights = [parameter.detach() for parameter in self.parameters]
        self._addresses = [weight.data_ptr() for weight in self.weights]
        self.chunks = cut_into_chunks(self.layers, [weight.device for weight in self.weights], self._chunk_units)
        self.active = [torch.ones(chunk.num_units, dtype=torch.bool, device=chunk.device) for chunk in self.chunks]
        views = [view for chunk, active in zip(self.chunks, self.active, strict=True) for view in chunk.split(active)]
        self._units = [layer.unflatten(view) for layer, view in zip(self.layers, views, strict=True)]
        self.masks = [
            unit if layer.is_fine else torch.ones_like(weight, dtype=torch.bool)
            for layer, unit, weight in zip(self.layers, self._units, self.weights, strict=True)
        ]
        self._masks_of_chunk = [Masks(chunk.of(self.masks), chunk.device) for chunk in self.chunks]
        flat = [layer.flatten(weight) for layer, weight in zip(self.layers, self.weights, strict=True)]
        self._flat_views = [
            stretch if stretch.data_ptr() == weight.data_ptr() else None
            for stretch, weight in zip(flat, self.weights, strict=True)
        ]

    @property
    def index_bytes(self) -> int:
        lasting = (kept for kind, kept in self.companions.items() if kind != "gradient")
        return sum(tensor.nbytes for tensors in (self.masks, *lasting) for tensor in tensors)

    def follow(self) -> None:
        """Follow the parameters if they were moved to another device or memory format since."""
        if [parameter.data_ptr() for parameter in self.parameters] == self._addresses:
            return
        masks = self.masks
        self._lay_out(
            [
                Layer(layer.name, layer.shape, memory_order(p) if layer.is_fine else layer.unit_dims)
                for layer, p in zip(self.layers, self.parameters, strict=True)
            ]
        )
        self.set_masks(masks)
        for name, tensors in self.companions.items():
            self.companions[name] = [
                torch.empty_like(weight, dtype=old.dtype).copy_(old)
                for weight, old in zip(self.weights, tensors, strict=True)
            ]
        if "signs" in self.companions:
            self._keep_signs(self.companions["signs"])

    def set_masks(self, masks: Sequence[Tensor]) -> None:
        """Take over a topology given as one full-size mask per layer."""
        for layer, unit, mask in zip(self.layers, self._units, masks, strict=True):
            within = [dim for dim in range(mask.ndim) if dim not in layer.unit_dims]
            unit.copy_(mask.amax(within, keepdim=True) if within else mask)
        self._expand_coarse()

    def set_active(self, active: Sequence[Tensor]) -> None:
        """Take over a topology given as one flat tensor per chunk."""
        for mine, given in zip(self.active, active, strict=True):
            mine.copy_(given)
        self._expand_coarse()

    def count(self) -> list[int]:
        """Active units of each layer."""
        parts = (part for chunk, active in zip(self.chunks, self.active, strict=True) for part in chunk.split(active))
        return [int(part.count_nonzero()) for part in parts]

    def dense_tensors(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        """Of each layer its weights and their optimizer state."""
        return {
            layer.name: [parameter.detach(), *state_like(optimizer, parameter)]
            for layer, parameter in zip(self.layers, self.parameters, strict=True)
        }

    @property
    def groups(self) -> list[range]:
        """One: weights move anywhere."""
        return [range(len(self.layers))]

    def expect_growth(self, wanted: Sequence[int]) -> None:
        """The gradients will be kept whole."""

    def zero_inactive(self, optimizer: Optimizer) -> None:
        """Set inactive weights and their optimizer state to exactly 0."""
        for chunk, masks in zip(self.chunks, self._masks_of_chunk, strict=True):
            pairs = zip(chunk.of(self.parameters), chunk.of(self.weights), strict=True)
            masks.zero_inactive([[weight, *state_like(optimizer, parameter)] for parameter, weight in pairs])

    def mask_gradients(self) -> None:
        """Set the gradients of inactive weights to exactly 0."""
        for chunk, masks in zip(self.chunks, self._masks_of_chunk, strict=True):
            gradients = [parameter.grad for parameter in chunk.of(self.parameters)]
            masks.zero_inactive([[] if gradient is None else [gradient] for gradient in gradients])

    def stretches(self, counts: Sequence[int]) -> list[Stretch]:
        """The row as it is now, for the rules; what they ask for is refused if it is not finite."""
        return [
            self._stretch(chunk, active, chunk.of(counts))
            for chunk, active in zip(self.chunks, self.active, strict=True)
        ]

    def _stretch(self, chunk: Chunk, active: Tensor, counts: Sequence[int]) -> FlaggedStretch:
        def pieces() -> list[Tensor]:
            parts = zip(chunk.layers, chunk.of(self.weights), chunk.of(self._flat_views), strict=True)
            return [layer.flatten(weight) if view is None else view for layer, weight, view in parts]

        def signs() -> Tensor:
            return self._signs[self.chunks.index(chunk)]

        def scores() -> Tensor:
            kept = chunk.of(self.companions.get("mean gradient") or self.companions["gradient"])
            gradient = chunk.flatten(kept)
            check_finite(gradient, chunk.layers, [layer.num_units for layer in chunk.layers], "gradients")
            return gradient.abs() if gradient.data_ptr() == kept[0].data_ptr() else gradient.abs_()

        return FlaggedStretch(chunk, active, tuple(counts), pieces, signs, scores)

    def apply(self, plan: Plan, optimizer: Optimizer) -> None:
        """Carry out a rewiring in place. What comes is 0 already, weight and state, because it was inactive."""
        for active, gone, come in zip(self.active, plan.gone, plan.come, strict=True):
            active.index_fill_(0, gone, False)
            active.index_fill_(0, come, True)
        self._expand_coarse()
        if "signs" in self.companions:
            self._toss_again(plan.gone)
        if all(can_use_triton(chunk.device) for chunk in self.chunks):
            self.zero_inactive(optimizer)
            return
        for chunk, gone in zip(self.chunks, plan.gone, strict=True):
            parts = torch.split(gone, list(chunk.of(plan.pruned)))
            for i, (layer, units) in enumerate(zip(chunk.layers, parts, strict=True)):
                if len(units):
                    parameter, weight = self.parameters[chunk.first + i], self.weights[chunk.first + i]
                    own = units - chunk.offsets[i]
                    for tensor in (weight, *state_like(optimizer, parameter)):
                        layer.zero(tensor, own)

    def keep_gradients(self, fresh: Sequence[int], scale: Tensor | None) -> None:
        """Keep the dense gradients, as they are before masking, for growth.

        Of a gradient that is not `fresh`, whose inactive places were 0 when it was last seen, what stands there came
        since and is added.
        """
        if "gradient" not in self.companions:
            self.companions["gradient"] = self._zeros()
        kept = self.companions["gradient"]
        for i, (parameter, mask) in enumerate(zip(self.parameters, self.masks, strict=True)):
            if parameter.grad is None:
                continue
            gradient = parameter.grad if scale is None else parameter.grad / scale
            if i in fresh:
                kept[i].copy_(gradient)
            else:
                kept[i].add_(gradient.masked_fill(mask, 0))

    def fold_gradients(self, memory: float) -> None:
        """Take the kept gradients into their running mean."""
        if "mean gradient" not in self.companions:
            self.companions["mean gradient"] = self._zeros()
        mean = self.companions["mean gradient"]
        torch._foreach_mul_(mean, memory)
        torch._foreach_add_(mean, self.companions["gradient"], alpha=1 - memory)

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for w in self.weights]

    def is_masked(self, i: int) -> bool:
        """Whether the gradient of layer i is 0 at all inactive places already."""
        gradient = self.parameters[i].grad
        return gradient is None or not bool(gradient.masked_fill(self.masks[i], 0).any())

    def fix_signs(self, seed: int) -> None:
        """Give every active position the sign of its weight; where that is 0, and elsewhere, one at random."""
        self._seed = seed
        signs = []
        for layer, weight, mask, start in zip(self.layers, self.weights, self.masks, self._first_places(), strict=True):
            coin = random.coins(seed, torch.arange(start, start + layer.num_units, device=weight.device))
            signs.append(torch.where(mask & (weight != 0), weight > 0, layer.unflatten(coin)))
        self._keep_signs(signs)

    def _keep_signs(self, signs: Sequence[Tensor]) -> None:
        """Lay signs out like the topology."""
        self._signs = [chunk.flatten(chunk.of(signs)).clone() for chunk in self.chunks]
        views = [view for chunk, row in zip(self.chunks, self._signs, strict=True) for view in chunk.split(row)]
        self.companions["signs"] = [layer.unflatten(view) for layer, view in zip(self.layers, views, strict=True)]

    def _toss_again(self, gone: Sequence[Tensor]) -> None:
        """Where a weight has gone its position gets a sign at random, that of a weight which may come there."""
        for chunk, signs, units in zip(self.chunks, self._signs, gone, strict=True):
            signs.index_copy_(0, units, random.coins(self._seed, units + self._first_places()[chunk.first]))

    def _first_places(self) -> list[int]:
        return list(accumulate((layer.num_units for layer in self.layers[:-1]), initial=0))

    def walk(self, method: Method, rates: Sequence[float], step: int, seed: int) -> None:
        """Let the active weights drift as the method says."""
        start = 0
        for chunk, active, flat in zip(self.chunks, self.active, self._signs, strict=True):
            positions = positions_of(active)
            noise = random.normal(random.key(seed, step, 1), positions + start)
            signs = flat.index_select(0, positions)
            moves = method.walk(signs, noise, chunk.per_unit(chunk.of(rates), positions), step)
            row = torch.zeros(chunk.num_units, device=chunk.device).index_copy_(0, positions, moves)
            views = [layer.unflatten(part) for layer, part in zip(chunk.layers, chunk.split(row), strict=True)]
            torch._foreach_add_(list(chunk.of(self.weights)), views)
            start += chunk.num_units

    def make_walk(self, last: Walk | None) -> Walk | None:
        """What walks and rewires on a GPU without the host, the last one if it still fits; None where none does."""
        chunk = self.chunks[0]
        if last is not None and last.chunk is chunk:
            return last
        fits = len(self.chunks) == 1 and can_use_triton(chunk.device) and None not in self._flat_views
        if not fits or {weight.dtype for weight in self.weights} != {torch.float32}:
            return None
        return Walk(chunk, lambda: (self.weights, self.companions["signs"], self.active[0]))

    def named_masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name."""
        return by_name(self.layers, self.masks)

    def state(self) -> dict[str, Any]:
        """The topology and the companions that last, by layer name."""
        lasting = {kind: tensors for kind, tensors in self.companions.items() if kind != "gradient"}
        return {
            "masks": self.named_masks(),
            "companions": {kind: by_name(self.layers, tensors) for kind, tensors in lasting.items()},
        }

    def check(self, state: Mapping[str, Any], keeps_budget: bool) -> None:
        """Refuse a sparsifier's state that does not fit these layers."""
        check_topology(state, self.layers, keeps_budget)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over topology and companions; a gradient that a captured graph writes to stays."""
        names = [layer.name for layer in self.layers]
        self.set_masks([state["masks"][name] for name in names])
        in_graph = {kind: kept for kind, kept in self.companions.items() if kind == "gradient"}
        self.companions = in_graph | {
            kind: [
                torch.empty_like(p, dtype=tensors[name].dtype, requires_grad=False).copy_(tensors[name])
                for p, name in zip(self.parameters, names, strict=True)
            ]
            for kind, tensors in state["companions"].items()
        }
        self._seed = state["seed"]
        if "signs" in self.companions:
            self._keep_signs(self.companions["signs"])

    def copy(self, memo: dict[int, Any]) -> "DenseStorage":
        """All places active, on the copied parameters."""
        return DenseStorage(self.layers, copy.deepcopy(self.parameters, memo), self._chunk_units)

    def release(self, optimizer: Optimizer) -> None:
        """Parameters are ordinary ones, with zeros in them."""

    def _expand_coarse(self) -> None:
        for layer, unit, mask in zip(self.layers, self._units, self.masks, strict=True):
            if not layer.is_fine:
                mask.copy_(unit)
