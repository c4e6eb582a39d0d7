"""DeepR on a GPU: walking and rewiring after every step without waiting for the host, also inside a captured graph."""

from collections.abc import Sequence

from torch.optim import Optimizer

from regrow.kernels.gpu.deepr_walk import Walk
from regrow.methods.method import Method
from regrow.storage.base import RewirableStorage


class LoneWalk:
    """Keeps the device told what the coming step is like, and remembers what the host has not yet asked about."""

    def __init__(self, method: Method, storage: RewirableStorage, optimizer: Optimizer) -> None:
        self._method, self._storage, self._optimizer = method, storage, optimizer
        self._walk: Walk | None = None
        self._last_unread: int | None = None
        self.is_captured = False
        """Whether a graph does the steps, so that the host only counts them."""

    def step(self, step: int, counts: Sequence[int], seed: int) -> bool:
        """Take a step if the method and the weights allow it: else it is the host's to take."""
        if not self._method.walks or self._method.diffusion(step) is None:
            return False
        walk = self._storage.make_walk(self._walk)
        if walk is None:
            return False
        if walk is not self._walk:
            self._walk = walk
            walk.start(counts, seed, step - 1)
            self._announce(step)
        self._act()
        return True

    def record(self) -> None:
        """Put a step into the graph that is being captured."""
        if self._walk is not None:
            self._act()
            self.is_captured = True

    def took(self, step: int) -> None:
        """Count a step, and tell the device about the next one."""
        if self._method.is_due(step):
            self._last_unread = step
        self._announce(step + 1)

    def read(self) -> tuple[int, list[int]] | None:
        """The last step that rewired and how many units of each layer went and came since the last reading."""
        if self._walk is None or self._last_unread is None:
            return None
        step, self._last_unread = self._last_unread, None
        return step, self._walk.read_totals()

    def restart(self, step: int, counts: Sequence[int], seed: int) -> None:
        """Go on after a step as another sparsifier did."""
        self._last_unread = None
        if self._walk is not None:
            self._walk.start(counts, seed, step)
            self._announce(step + 1)

    def _act(self) -> None:
        assert self._walk is not None
        rate = {id(p): group["lr"] for group in self._optimizer.param_groups for p in group["params"]}
        self._walk.step([rate[id(p)] for p in self._storage.parameters])
        self._storage.zero_inactive(self._optimizer)

    def _announce(self, step: int) -> None:
        diffusion = self._method.diffusion(step)
        if self._walk is not None and diffusion is not None:
            self._walk.set_dials(*diffusion, rewires=self._method.is_due(step))
