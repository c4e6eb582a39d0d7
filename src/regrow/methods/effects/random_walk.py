"""DeepR's random walk: after each step of the optimizer weights drift towards zero and get noise.

Where the whole network is on one GPU, walking and rewiring are done there without a word from the host, also inside a
captured graph.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core import random
from regrow.core.quantities import Quantities
from regrow.kernels.gpu.deepr_walk import Walk
from regrow.methods.effects.effect import Effect, Weights, rates_of, rewirable


class Walks(Protocol):
    """What a method says of its walk."""

    @property
    def l1(self) -> float: ...
    @property
    def regrows_in_place(self) -> bool: ...
    def temperature_at(self, step: int) -> float: ...
    def is_due(self, step: int) -> bool: ...


class RandomWalk(Effect):
    """Moves the active weights towards zero and beyond, by their signs, and rewires where it can."""

    def __init__(self, method: Walks) -> None:
        self._method = method
        self._on_device: Walk | None = None
        self._is_captured = False
        self._last_unread: int | None = None

    def attach(self, weights: Weights, optimizer: Optimizer, seed: int) -> None:
        super().attach(weights, optimizer, seed)
        self._rewirable = rewirable(weights)

    def after_step(self, step: int, is_replayed: bool) -> bool:
        if (is_replayed and self._is_captured) or self._step_on_device(step):
            self._last_unread = step if self._method.is_due(step) else self._last_unread
            self._announce(step + 1)
            return True
        key, temperature = random.key(self._seed, step, 1), self._method.temperature_at(step)

        def moves(units: Quantities, rate: float | Tensor) -> Tensor:
            noise = random.normal(key, units.position)
            return drift_and_noise(units.sign, noise, rate, self._method.l1, temperature)

        rates = rates_of(self._optimizer, self._rewirable.parameters)
        self._rewirable.add_to_active(moves, [float(rate) for rate in rates])
        return False

    # On one GPU

    def _step_on_device(self, step: int) -> bool:
        """Take a step there if the method and the weights allow it."""
        piece = self._rewirable.in_one_piece() if self._method.regrows_in_place else None
        if piece is None:
            return False
        chunk, tensors = piece
        if self._on_device is None or self._on_device.chunk is not chunk:
            self._on_device = Walk(chunk, tensors)
            self._on_device.start(self._rewirable.count(), self._seed, step - 1)
            self._announce(step)
        self._act(self._on_device)
        return True

    def capture(self) -> None:
        if self._on_device is not None:
            self._act(self._on_device)
            self._is_captured = True

    def _act(self, walk: Walk) -> None:
        walk.step(rates_of(self._optimizer, self._rewirable.parameters))
        self._rewirable.zero_inactive(self._optimizer)

    def _announce(self, step: int) -> None:
        """Tell the device what the coming step is like."""
        if self._on_device is not None:
            temperature, is_due = self._method.temperature_at(step), self._method.is_due(step)
            self._on_device.set_dials(temperature, self._method.l1, rewires=is_due)

    def totals(self) -> tuple[int, list[int]] | None:
        if self._on_device is None or self._last_unread is None:
            return None
        step, self._last_unread = self._last_unread, None
        return step, self._on_device.read_totals()

    def restart(self, step: int, seed: int) -> None:
        super().restart(step, seed)
        self._last_unread = None
        if self._on_device is not None:
            self._on_device.start(self._rewirable.count(), seed, step)
            self._announce(step + 1)


def drift_and_noise(signs: Tensor, noise: Tensor, rates: float | Tensor, l1: float, temperature: float) -> Tensor:
    """A step of the walk (Bellec et al., 2018, eq. 1): drift by -rate * l1 towards zero plus sqrt(2 rate T) noise.

    `signs` is true where a weight belongs to the positive side.
    """
    spread = (2 * temperature * rates) ** 0.5
    towards_zero = torch.where(signs, -l1, l1)
    return noise * spread + towards_zero * rates
