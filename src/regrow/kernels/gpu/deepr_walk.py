"""DeepR's steps on a GPU without a word from the host, so that a CUDA graph can hold them."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from regrow.core import random
from regrow.core.row import Chunk
from regrow.kernels.gpu import kernel, on

_BLOCK, _NUM_WARPS = 2048, 8
_NOBODY = torch.iinfo(torch.int32).max


class Walk:
    """Moves the weights of a chunk, prunes what crossed zero and regrows as much in the same layer.

    What changes from step to step is on the device: the step itself, which the last kernel counts, temperature and
    drift, whether this step rewires, and how many units of each layer were replaced since somebody last asked. All of
    it is edited in place: a captured graph goes on reading it.
    """

    def __init__(self, chunk: Chunk, tensors: Callable[[str], Sequence[Tensor]]) -> None:
        """`tensors` gives "weight" and "sign" of each layer and "active", the topology, as they are now."""
        device, num_layers = chunk.device, len(chunk.layers)
        self.chunk = chunk
        self._tensors = tensors
        self._layers = torch.zeros(num_layers, 5, dtype=torch.int64, device=device)
        self._clock = torch.zeros(2, dtype=torch.int64, device=device)
        self._dials = torch.zeros(3, dtype=torch.float64, device=device)
        self._set_to = (0.0, 0.0, 0.0)
        self._rates = torch.zeros(num_layers, device=device)
        self._marks = torch.zeros(chunk.num_units, dtype=torch.uint8, device=device)
        self._owner = torch.empty(chunk.num_units, dtype=torch.int32, device=device)
        self._counts = torch.zeros(num_layers, dtype=torch.int32, device=device)
        self._totals = torch.zeros(num_layers, dtype=torch.int64, device=device)
        self._tables: dict[tuple[tuple[int, int], ...], Tensor] = {}  # kept: a graph may hold them

    def start(self, counts: Sequence[int], seed: int, step: int) -> None:
        """Go on after a step, with so many active units in each layer."""
        rows = []
        first_block = 0
        for layer, count, (begin, end) in zip(self.chunk.layers, counts, pairwise(self.chunk.offsets), strict=True):
            free = layer.num_units - count
            rows.append((begin, end, min(count - 1, free), free, first_block))
            first_block += -(-layer.num_units // _BLOCK)
        self._layers.copy_(torch.tensor(rows))
        self._clock.copy_(torch.tensor([step, random.signed(random.key(seed))]))
        self._totals.zero_()

    def set_dials(self, temperature: float, drift: float, rewires: bool) -> None:
        """For the next step."""
        dials = (temperature, drift, float(rewires))
        for i, (new, old) in enumerate(zip(dials, self._set_to, strict=True)):
            if new != old:
                self._dials[i].fill_(new)
        self._set_to = dials

    def step(self, rates: Sequence[float | Tensor]) -> None:
        """Move the weights of each layer and edit the topology; what is inactive now is left to be zeroed."""
        weights, signs, (active,) = (self._tensors(name) for name in ("weight", "sign", "active"))
        self._take_rates(rates)
        self._owner.fill_(_NOBODY)
        self._counts.zero_()
        blocks = self._blocks(weights, signs)
        every_block, every_layer = (len(blocks),), (len(self._layers),)
        common = {"BLOCK": _BLOCK, "num_warps": _NUM_WARPS}
        marks, counts = self._marks, self._counts
        with on(self.chunk.device):
            kernel("walk")[every_block](blocks, active, self._rates, self._clock, self._dials, marks, counts, **common)
            kernel("replace_crossed")[every_layer](
                self._layers, blocks, active, self._clock, marks, self._owner, counts, self._totals, **common
            )
            kernel("apply_marks")[every_block](blocks, active, marks, self._clock, **common)

    def read_totals(self) -> list[int]:
        """How many units of each layer were replaced since this was last asked; waits for the device."""
        totals: list[int] = self._totals.tolist()
        self._totals.zero_()
        return totals

    def _take_rates(self, rates: Sequence[float | Tensor]) -> None:
        """A learning rate that is a tensor is read on its device: it may change between replays of a graph."""
        is_one = all(rate is rates[0] for rate in rates)
        for into, rate in [(self._rates, rates[0])] if is_one else zip(self._rates, rates, strict=True):
            into.copy_(rate) if isinstance(rate, Tensor) else into.fill_(rate)

    def _blocks(self, weights: Sequence[Tensor], signs: Sequence[Tensor]) -> Tensor:
        """Layers cut into blocks, as the kernels want them described."""
        addresses = tuple([(sign.data_ptr(), weight.data_ptr()) for sign, weight in zip(signs, weights, strict=True)])
        if addresses not in self._tables:
            rows = [
                (unit, end, i, sign + unit - begin, weight + 4 * (unit - begin))
                for i, ((sign, weight), (begin, end)) in enumerate(
                    zip(addresses, pairwise(self.chunk.offsets), strict=True)
                )
                for unit in range(begin, end, _BLOCK)
            ]
            self._tables[addresses] = torch.tensor(rows).to(self.chunk.device)
        return self._tables[addresses]
