"""The sparsifier: what `attach` returns. It rides on the optimizer's step hooks and remembers; the rules decide."""

import copy
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from regrow.core.rewire import plan
from regrow.core.row import Tally
from regrow.methods.method import Method
from regrow.sparsifier.history import MOST_RECORDS, Callbacks, Rewiring
from regrow.sparsifier.hooks import Gradients, StepHooks
from regrow.sparsifier.state import as_state, checked
from regrow.sparsifier.summary import LayerInfo, summarise
from regrow.storage.base import Foresighted, Rewirable, Storage

_LIVE: "weakref.WeakSet[Sparsifier]" = weakref.WeakSet()


class Sparsifier:
    """Keeps a network sparse while its optimizer trains it. Made by `regrow.attach`."""

    def __init__(
        self,
        optimizer: Optimizer,
        method: Method,
        storage: Storage,
        tally: Tally,
        seed: int,
        undivided: tuple[str, ...] = (),
    ) -> None:
        self.method = method
        self.seed = seed
        self.undivided = undivided
        """Tensors that stay dense because blocks do not divide them."""
        self.on_rewire = Callbacks()
        self._optimizer = optimizer
        self._storage = storage
        self._rewirable = storage if isinstance(storage, Rewirable) else None
        self._foresighted = storage if isinstance(storage, Foresighted) and "free_gradient" in method.needs else None
        self._tally = tally
        self._step = 0
        self._memory = method.first_memory()
        self._recent: deque[Rewiring] = deque(maxlen=MOST_RECORDS)
        self._last: Rewiring | None = None
        self._in_all = [[0] * len(storage.layers), [0] * len(storage.layers)]  # units pruned and grown, of each layer
        self._num_states = -1
        self._is_captured = False
        self._effects = method.effects()
        for effect in self._effects:
            effect.attach(storage, optimizer, seed)
        self._gradients = Gradients(method, self._effects, storage, optimizer)
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
    def storage(self) -> Storage:
        """Where the weights are."""
        return self._storage

    @property
    def optimizer(self) -> Optimizer:
        """What trains them."""
        return self._optimizer

    @property
    def num_steps(self) -> int:
        """Optimizer steps counted so far."""
        return self._step

    @property
    def budget(self) -> int:
        """How many weights are to be active now; of coarser units nearly as many are."""
        return self._tally.budget

    @property
    def target(self) -> int:
        """How many are to be active in the end; the budget, unless the method moves it."""
        return self._tally.target

    @property
    def active(self) -> int:
        """Active weights now."""
        return self._tally.weights_in(self._tally.active)

    @property
    def sparsity(self) -> float:
        """The inactive fraction of all positions now."""
        return 1 - self.active / self._tally.weights_in(self._tally.num_units)

    @property
    def layers(self) -> list[LayerInfo]:
        """Every sparse layer, in the order of the row."""
        return [
            LayerInfo(layer.name, layer.shape, n * layer.unit_size, 1 - n / layer.num_units)
            for n, layer in zip(self._tally.active, self._storage.layers, strict=True)
        ]

    @property
    def history(self) -> list[Rewiring]:
        """One record per rewiring, the last 10,000; for methods that rewire every step one record with the totals."""
        self._ask_effects()
        return self._all_in_one() if self.method.rewires_every_step else list(self._recent)

    @property
    def totals(self) -> Rewiring | None:
        """All rewirings in one record; None before the first."""
        self._ask_effects()
        return next(iter(self._all_in_one()), None)

    def _all_in_one(self) -> list[Rewiring]:
        last = self._last
        return [] if last is None else [self._record(last.step, self._in_all[0], self._in_all[1], last.threshold)]

    def masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name: true where a weight is active. None ({}) where positions share values."""
        return {} if self._rewirable is None else self._rewirable.masks()

    def summary(self) -> str:
        """A table of the layers, and what stays dense because blocks do not divide it."""
        title = f"{type(self.method).__name__}, step {self._step:,}, budget {self.budget:,}"
        table = summarise(title, self.layers)
        if not self.undivided:
            return table
        return f"{table}\ndense, not divided by {self.method.granularity}: {', '.join(self.undivided)}"

    # What happens in a training step

    def mask_gradients(self) -> None:
        """Zero the gradients of inactive weights now, e.g. before clipping; the hook does it otherwise.

        What a rewiring needs of a gradient and the L1 term are taken from each new one once, however often this is
        called: so where gradients accumulate call it after the last backward pass. Under a GradScaler leave
        `zero_grad(set_to_none=True)` as it is: a gradient tensor that is used again after a skipped step looks like one
        that goes on accumulating.
        """
        self._check_attached()
        with torch.no_grad():
            self._follow()
            self._gradients.prepare(self._step + 1)

    def advance(self) -> None:
        """Count one step and rewire if one is due: for loops whose steps run without hooks, as in a captured graph.

        A graph that holds a step of DeepR on one GPU holds its rewiring too, and this only counts it.
        """
        self._check_attached()
        self._finish_step(is_replayed=self._is_captured)

    def _follow(self) -> None:
        if self._rewirable is not None:
            self._rewirable.follow()

    @torch.no_grad()
    def _finish_step(self, is_replayed: bool = False) -> None:
        step, record = self._step + 1, None
        if len(self._optimizer.state) != self._num_states:  # new state may begin with a constant
            self._zero_inactive()
            self._num_states = len(self._optimizer.state)
        is_due = self.method.is_due(step)
        if self._effects or is_due:
            self._follow()
            is_done = [effect.after_step(step, is_replayed) for effect in self._effects]
            record = self._rewire(step) if is_due and not any(is_done) else None
        self._step = step
        self._gradients.drop()
        self._expect_growth()
        if record is not None:
            self._note(record)
        elif self.on_rewire:
            self._ask_effects()

    def _zero_inactive(self) -> None:
        if self._rewirable is not None:
            self._rewirable.follow()
            self._rewirable.zero_inactive(self._optimizer)

    @torch.no_grad()
    def _record_step(self) -> None:
        """What a captured step does beyond the optimizer's own."""
        self._gradients.forget()
        self._is_captured = True
        for effect in self._effects:
            effect.capture()

    @torch.no_grad()
    def _note(self, record: Rewiring) -> None:
        self._last = record
        self._in_all = [
            list(map(add, counts, more.values()))
            for counts, more in zip(self._in_all, (record.pruned, record.grown), strict=True)
        ]
        if not self.method.rewires_every_step:
            self._recent.append(record)
        for callback in self.on_rewire:
            callback(record)

    def _ask_effects(self) -> None:
        """What effects did on the device, of which the host does not hear by itself."""
        for effect in self._effects:
            if done := effect.totals():
                step, counts = done
                self._note(self._record(step, counts, counts, None))

    def _record(self, step: int, pruned: Sequence[int], grown: Sequence[int], threshold: float | None) -> Rewiring:
        names = [layer.name for layer in self._storage.layers]
        lost, got = (dict(zip(names, counts, strict=True)) for counts in (pruned, grown))
        return Rewiring(step, lost, got, threshold)

    def _rewire(self, step: int) -> Rewiring:
        assert self._rewirable is not None  # only its methods are ever due
        self._gradients.check_kept(step)
        tally = self._tally_at(step)
        evidence = self._rewirable.evidence(tally, step)
        todo = plan(self.method, evidence, self.seed, self._memory)
        self._rewirable.apply(todo, evidence, self._optimizer)
        pruned, grown = todo.pruned.counts, todo.grown.counts
        active = tuple(n - p + g for n, p, g in zip(tally.active, pruned, grown, strict=True))
        self._tally = replace(tally, active=active)
        record = self._record(step, pruned, grown, self._memory.get("threshold"))
        self._memory = todo.memory
        return record

    def _tally_at(self, step: int) -> Tally:
        budget = self.method.budget_at(step, self._tally)
        if budget != self._tally.budget and "changing_budget" not in self.method.needs:
            raise ValueError(
                f"{type(self.method).__name__} moves its budget from {self._tally.budget:,} to {budget:,}; a method "
                'that does so needs "changing_budget"'
            )
        return replace(self._tally, budget=budget)

    def _expect_growth(self) -> None:
        """Tell the storage before a step by whose gradients the network will grow."""
        if self._foresighted is not None:
            step = self._step + 1
            is_due = self.method.is_due(step)
            counts = self.method.prune_counts(self._tally_at(step), step) if is_due else [0] * len(self._tally.active)
            self._foresighted.expect_growth(counts, self.method.growth_score)

    # How it is saved, copied and taken off

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as tensors, numbers and strings, in the layers' own shapes."""
        self._ask_effects()
        own = {"seed": self.seed, "step": self._step, "memory": dict(self._memory)}
        records = {"history": self.history, "totals": self._all_in_one()}
        told = {key: tuple(asdict(record) for record in some) for key, some in records.items()}
        return as_state(self.method, self._storage, self._tally) | own | told

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; checks first that it belongs to the same method, layers and budget."""
        self._check_attached()
        checked_ = checked(state, self.method, self._storage, self._tally)
        self._follow()
        self._restore(checked_)
        self._zero_inactive()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._storage.load(state)
        self.seed, self._step = state["seed"], state["step"]
        active = tuple(self._storage.count())
        self._tally = replace(
            self._tally, active=active, goal=tuple(state["goal"]), target=state["target"], budget=state["budget"]
        )
        self._memory = dict(state["memory"])
        self._recent = deque((Rewiring(**record) for record in state["history"]), maxlen=MOST_RECORDS)
        self._last, self._in_all = None, [[0] * len(active), [0] * len(active)]
        for record in state["totals"]:
            self._last = Rewiring(**record)
            self._in_all = [
                [own[layer.name] for layer in self._storage.layers] for own in (self._last.pruned, self._last.grown)
            ]
        self._gradients.forget()
        for effect in self._effects:
            effect.restart(self._step, self.seed)
        self._expect_growth()

    def reload(self) -> None:
        """Look again at a storage that was filled from a file."""
        self._follow()
        self._tally = replace(self._tally, active=tuple(self._storage.count()))
        for effect in self._effects:
            effect.renew()
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
            copy.deepcopy(self._optimizer, memo), self.method, storage, self._tally, self.seed, self.undivided
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
