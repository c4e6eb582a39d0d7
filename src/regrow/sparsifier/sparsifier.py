"""The sparsifier: what `attach` returns. It rides on the optimizer's step hooks and remembers; the rules decide."""

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.rewire import plan
from regrow.core.row import Tally
from regrow.methods.method import Method
from regrow.sparsifier.gradients import Gradients
from regrow.sparsifier.history import Callbacks, History, Rewiring
from regrow.sparsifier.hooks import StepHooks
from regrow.sparsifier.lone_walk import LoneWalk
from regrow.sparsifier.state import STATE_VERSION, check_state
from regrow.sparsifier.summary import LayerInfo, summarise
from regrow.storage.base import RewirableStorage, Storage

_LIVE: "weakref.WeakSet[Sparsifier]" = weakref.WeakSet()


class Sparsifier:
    """Keeps a network sparse while its optimizer trains it. Made by `regrow.attach`."""

    def __init__(
        self,
        optimizer: Optimizer,
        method: Method,
        storage: Storage,
        *,
        seed: int,
        counts: Sequence[int],
        goal: Sequence[int],
        budget: int,
    ) -> None:
        self.method = method
        self.seed = seed
        self.budget = budget
        self.on_rewire = Callbacks()
        self._optimizer = optimizer
        self._storage = storage
        self._counts = list(counts)
        self._goal = tuple(goal)
        self._sizes = tuple(layer.unit_size for layer in storage.layers), tuple(n.num_units for n in storage.layers)
        self._step = 0
        self._memory = method.first_memory()
        self._history = History(totals_only=method.walks)
        self._num_states = -1
        self._gradients = Gradients(method, storage, optimizer)
        self._alone = LoneWalk(method, self._rewirable, optimizer)
        self._hooks = StepHooks(
            optimizer,
            before=self.mask_gradients,
            after=self._finish_step,
            captured=self._record_step,
            skipped=self._gradients.forget,
        )
        _LIVE.add(self)
        self._expect_growth()

    # What it knows

    @property
    def step(self) -> int:
        """Optimizer steps counted so far."""
        return self._step

    @property
    def active(self) -> int:
        """Active weights now."""
        return sum(n * layer.unit_size for n, layer in zip(self._counts, self._storage.layers, strict=True))

    @property
    def sparsity(self) -> float:
        """The inactive fraction of all positions now."""
        return 1 - self.active / sum(layer.num_weights for layer in self._storage.layers)

    @property
    def layers(self) -> list[LayerInfo]:
        """Every sparse layer, in the order of the row."""
        return [
            LayerInfo(layer.name, layer.shape, n * layer.unit_size, 1 - n / layer.num_units)
            for n, layer in zip(self._counts, self._storage.layers, strict=True)
        ]

    @property
    def history(self) -> list[Rewiring]:
        """One record per rewiring; for methods that rewire after every step one record with the totals."""
        self._note_lone_walk()
        return list(self._history.records)

    def masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name: true where a weight is active. None ({}) where positions share values."""
        return self._storage.named_masks()

    def summary(self) -> str:
        """A table of the layers."""
        title = f"{type(self.method).__name__}, step {self._step:,}, budget {self.budget:,}"
        return summarise(title, self.layers)

    # What happens in a training step

    def mask_gradients(self) -> None:
        """Zero the gradients of inactive weights now, e.g. before clipping; the hook does it otherwise.

        Growth evidence and the L1 term are taken from each new gradient once, however often this is called. Under a
        GradScaler leave `zero_grad(set_to_none=True)` as it is: a gradient tensor that is used again after a skipped
        step looks like one that goes on accumulating.
        """
        self._check_attached()
        with torch.no_grad():
            self._storage.follow()
            self._gradients.prepare(self._step + 1)

    def advance(self) -> None:
        """Count one step and rewire if one is due: for loops whose steps run without hooks, as in a captured graph.

        A graph that holds a step of DeepR on one GPU holds its rewiring too, and this only counts it.
        """
        self._check_attached()
        self._finish_step(is_replayed=self._alone.is_captured)

    def _finish_step(self, is_replayed: bool = False) -> None:
        step, record = self._step + 1, None
        if len(self._optimizer.state) != self._num_states:  # new state may begin with a constant
            with torch.no_grad():
                self._storage.follow()
                self._storage.zero_inactive(self._optimizer)
            self._num_states = len(self._optimizer.state)
        if self.method.walks or self.method.gradient_memory or self.method.is_due(step):
            record = self._walk_and_rewire(step, is_replayed)
        self._step = step
        self._gradients.drop()
        self._expect_growth()
        if record is not None:
            self._note(record)
        elif self.on_rewire:
            self._note_lone_walk()

    @torch.no_grad()
    def _walk_and_rewire(self, step: int, is_replayed: bool) -> Rewiring | None:
        self._storage.follow()
        if is_replayed or self._alone.step(step, self._counts, self.seed):
            self._alone.took(step)
            return None
        if self.method.walks:
            self._walk(step)
        if self.method.gradient_memory and "gradient" in self._rewirable.companions:
            self._rewirable.fold_gradients(self.method.gradient_memory)
        return self._rewire(step) if self.method.is_due(step) else None

    @torch.no_grad()
    def _record_step(self) -> None:
        """What a captured step does beyond the optimizer's own."""
        self._gradients.forget()
        self._alone.record()

    @torch.no_grad()
    def _note(self, record: Rewiring) -> None:
        self._history.add(record)
        for callback in self.on_rewire:
            callback(record)

    def _note_lone_walk(self) -> None:
        """Ask the device what it did alone."""
        if done := self._alone.read():
            step, counts = done
            replaced = dict(zip([layer.name for layer in self._storage.layers], counts, strict=True))
            self._note(Rewiring(step, replaced, dict(replaced)))

    @property
    def _rewirable(self) -> RewirableStorage:
        """The storage, for methods that rewire, walk or go by gradients: `attach` gives them one that can."""
        return cast(RewirableStorage, self._storage)

    def _walk(self, step: int) -> None:
        rate = {id(p): float(group["lr"]) for group in self._optimizer.param_groups for p in group["params"]}
        self._rewirable.walk(self.method, [rate[id(p)] for p in self._storage.parameters], step, self.seed)

    def _rewire(self, step: int) -> Rewiring:
        evidence = "mean gradient" if self.method.gradient_memory else "gradient"
        if self.method.gradient_memory is not None and evidence not in self._rewirable.companions:
            raise RuntimeError(
                f"{type(self.method).__name__} grows by the dense gradient of step {step}, which nobody kept; call "
                "mask_gradients() before the optimizer's step"
            )
        layers = self._storage.layers
        stretches = self._rewirable.stretches(self._counts)
        groups = self._rewirable.groups
        todo = plan(self.method, stretches, self._tally(), step, self.seed, self._memory, groups)
        self._rewirable.apply(todo, self._optimizer)
        self._counts = [n - p + g for n, p, g in zip(self._counts, todo.pruned, todo.grown, strict=True)]
        names = [layer.name for layer in layers]
        record = Rewiring(
            step,
            dict(zip(names, todo.pruned, strict=True)),
            dict(zip(names, todo.grown, strict=True)),
            self._memory.get("threshold"),
        )
        self._memory = todo.memory
        return record

    def _tally(self) -> Tally:
        nothing = (0,) * len(self._counts)
        return Tally(*self._sizes, tuple(self._counts), self._goal, self.budget, nothing)

    def _expect_growth(self) -> None:
        """Tell the storage before a step by whose gradients the network will grow."""
        if self.method.gradient_memory is None:
            return
        step = self._step + 1
        is_due = self.method.is_due(step)
        wanted = self.method.how_many_go(self._tally(), step) if is_due else [0] * len(self._counts)
        self._rewirable.expect_growth(wanted)

    # How it is saved, copied and taken off

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as tensors, numbers and strings, in the layers' own shapes."""
        self._note_lone_walk()
        return {
            "version": STATE_VERSION,
            "method": type(self.method).__name__,
            "settings": repr(self.method),
            "granularity": self.method.granularity,
            "seed": self.seed,
            "step": self._step,
            "budget": self.budget,
            "goal": list(self._goal),
            "memory": dict(self._memory),
            **self._storage.state(),
            "history": self._history.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; checks first that it belongs to the same method and layers."""
        self._check_attached()
        check_state(state, self.method, self._storage.layers)
        self._storage.check(state, self.method.keeps_budget)
        self._storage.follow()
        self._restore(state)
        self._storage.zero_inactive(self._optimizer)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._storage.load(state)
        self._counts = self._storage.count()
        self.seed, self._step, self.budget = state["seed"], state["step"], state["budget"]
        self._goal = tuple(state["goal"])
        self._memory = dict(state["memory"])
        self._history.load(state["history"])
        self._gradients.forget()
        self._alone.restart(self._step, self._counts, self.seed)
        self._expect_growth()

    def _recount(self) -> None:
        """Look again at a storage that was filled from a file."""
        self._storage.follow()
        self._counts = self._storage.count()
        if self.method.walks:
            self._rewirable.fix_signs(self.seed)
        self._expect_growth()

    def detach(self) -> None:
        """Take the hooks off: what is left is an ordinary model, with zeros or equal weights, and its optimizer."""
        self._storage.release(self._optimizer)
        self._hooks.remove()
        _LIVE.discard(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sparsifier":
        """A copy on the copied model and optimizer: deepcopy all three together."""
        storage = self._storage.copy(memo)
        twin = Sparsifier(
            copy.deepcopy(self._optimizer, memo),
            self.method,
            storage,
            seed=self.seed,
            counts=self._counts,
            goal=self._goal,
            budget=self.budget,
        )
        memo[id(self)] = twin
        twin._restore(self.state_dict())
        twin.on_rewire.extend(self.on_rewire)
        if not self._hooks.are_on:
            twin.detach()
        return twin

    def _check_attached(self) -> None:
        if not self._hooks.are_on:
            raise RuntimeError("this sparsifier was detached; attach again to go on training sparsely")


def sparsifiers_of(parameters: Sequence[Tensor]) -> list[Sparsifier]:
    """The sparsifiers that already look after any of these parameters."""
    ours = {id(parameter) for parameter in parameters}
    return [sparse for sparse in _LIVE if any(id(p) in ours for p in sparse._storage.parameters)]
